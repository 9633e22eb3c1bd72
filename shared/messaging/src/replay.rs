//! What an operator selects for a replay, and the pages in which the outcome is returned.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use time::{OffsetDateTime, UtcOffset};

/// Which items a replay means: some by id, a period, or all.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, bound = "Id: DeserializeOwned + Default")]
pub struct Selection<Id> {
    pub ids: Option<Vec<Id>>,
    /// From this moment on, by the database's clock.
    #[serde(with = "time::serde::rfc3339::option")]
    pub from: Option<OffsetDateTime>,
    /// Before this moment.
    #[serde(with = "time::serde::rfc3339::option")]
    pub to: Option<OffsetDateTime>,
    /// Selects everything that waits. Explicit, because an empty body is more likely a mistake.
    pub all: bool,
    /// Where the last page ended. Without ids only.
    pub after: i64,
    /// Replay also what the [`ReplayPolicy`] refuses.
    pub force: bool,
    /// Only say what a replay would do.
    pub dry_run: bool,
}

impl<Id> Selection<Id> {
    /// Checks that exactly one way of selecting is used, with at most `max_ids` ids. The error says what is valid.
    pub fn check(&self, max_ids: i64) -> Result<(), String> {
        let period = self.from.is_some() || self.to.is_some();
        let ways = usize::from(self.ids.is_some()) + usize::from(period) + usize::from(self.all);
        if ways != 1 {
            return Err("one of ids, from with or without to, and all is needed".into());
        }
        // PostgreSQL stores UTC, and a time at the edge of what RFC 3339 can write may have none.
        if [self.from, self.to].iter().flatten().any(|time| time.checked_to_offset(UtcOffset::UTC).is_none())
        {
            return Err("from and to must be times between the years 1 and 9999".into());
        }
        let count = self.ids.as_ref().map_or(0, Vec::len);
        if i64::try_from(count).is_ok_and(|count| count <= max_ids) {
            return Ok(());
        }
        Err(format!("at most {max_ids} ids at a time"))
    }

    /// The ids that were asked for and not found.
    pub fn missing(&self, is_found: impl Fn(&Id) -> bool) -> impl Iterator<Item = &Id> {
        self.ids.iter().flatten().filter(move |id| !is_found(id))
    }

    /// Like [`next_page`]. Ids that were named are one page.
    pub fn next_page<T>(&self, chosen: &[T], limit: i64, id: impl Fn(&T) -> i64) -> Option<i64> {
        if self.ids.is_some() { None } else { next_page(chosen, limit, id) }
    }
}

/// Under which conditions an event may be published or applied again.
#[derive(Debug, Clone, Copy)]
pub struct ReplayPolicy {
    /// Older events are refused: their record in `processed_events` may be erased, and a copy would be applied again.
    pub max_age: Duration,
    /// Replay older ones too, and discarded ones. The operator is responsible for the result.
    pub force: bool,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The value of `after` for the next page; `None` on the last.
    pub next: Option<i64>,
}

/// The `after` of the next page: the id of the last item, if the page is full.
pub fn next_page<T>(items: &[T], limit: i64, id: impl Fn(&T) -> i64) -> Option<i64> {
    items.last().filter(|_| i64::try_from(items.len()) == Ok(limit)).map(id)
}

/// Why an operator discarded something: a text of 1 to 1,000 bytes.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Note(String);

impl Note {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Note {
    type Error = &'static str;

    fn try_from(note: String) -> Result<Self, Self::Error> {
        let valid = !note.trim().is_empty() && note.len() <= 1_000 && !note.contains('\0');
        if valid { Ok(Self(note)) } else { Err("a note of 1 to 1,000 bytes is needed") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_uses_exactly_one_way_of_selecting() {
        let selection = |json: &str| {
            serde_json::from_str::<Selection<i64>>(json).map(|selection| selection.check(2).is_ok())
        };
        for good in [
            r#"{"ids": [1, 2]}"#,
            r#"{"all": true, "force": true, "dryRun": true}"#,
            r#"{"from": "2026-01-01T00:00:00Z"}"#,
            r#"{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00+01:00", "after": 7}"#,
        ] {
            assert!(selection(good).unwrap(), "{good}");
        }
        for bad in ["{}", r#"{"ids": [1], "all": true}"#, r#"{"ids": [1, 2, 3]}"#, r#"{"all": false}"#] {
            assert!(!selection(bad).unwrap(), "{bad}");
        }
        for nonsense in [r#"{"id": [1]}"#, r#"{"from": "yesterday"}"#] {
            assert!(selection(nonsense).is_err(), "{nonsense}");
        }
    }
}
