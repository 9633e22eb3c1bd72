//! The two messages of PostgreSQL's `pgoutput` protocol that carry events: the columns of the table, and an inserted row.
//! (<https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>)

use std::{str, time::SystemTime};

use messaging::Outgoing;

use messaging::ClaimedEvent;

/// What could not be read.
#[derive(Debug, thiserror::Error)]
#[error("the log holds a message that is not an event of the outbox: {0}")]
pub(super) struct Unreadable(&'static str);

/// The columns of the outbox in the order in which rows have them. The server sends them before the first row, and again when
/// the table has changed.
#[derive(Debug, Default)]
pub(super) struct Columns(Vec<String>);

impl Columns {
    /// Reads a message of a transaction that was committed at this time. `None`: it holds no row.
    pub(super) fn read(
        &mut self,
        message: &[u8],
        committed_at: SystemTime,
    ) -> Result<Option<ClaimedEvent>, Unreadable> {
        let mut rest = Reader(message);
        match rest.byte()? {
            b'R' => {
                // Until the new ones are known: rows of another form would be misread.
                self.0.clear();
                *self = Self::from_relation(&mut rest)?;
                Ok(None)
            }
            b'I' => self.row(&mut rest, committed_at).map(Some),
            // Origins and types. The publication has inserts only.
            _ => Ok(None),
        }
    }

    fn from_relation(rest: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let _relation = rest.take(4)?;
        let (_schema, _table, _replica_identity) = (rest.text()?, rest.text()?, rest.byte()?);
        let count = rest.u16()?;
        let column = |_| {
            let _is_key = rest.byte()?;
            let name = rest.text()?.to_owned();
            let _type_and_modifier = rest.take(8)?;
            Ok(name)
        };
        (0..count).map(column).collect::<Result<_, _>>().map(Self)
    }

    fn row(&self, rest: &mut Reader<'_>, created_at: SystemTime) -> Result<ClaimedEvent, Unreadable> {
        let (_relation, _new, count) = (rest.take(4)?, rest.byte()?, rest.u16()?);
        let mut values = Vec::with_capacity(count.into());
        for _ in 0..count {
            values.push(match rest.byte()? {
                b't' => {
                    let length = rest.u32()?;
                    let length = usize::try_from(length).map_err(|_| Unreadable("a value's length"))?;
                    str::from_utf8(rest.take(length)?).map_err(|_| Unreadable("a value in UTF-8"))?
                }
                _ => return Err(Unreadable("a value")),
            });
        }
        let value = |column: &'static str| {
            let position = self.0.iter().position(|name| name == column);
            position.and_then(|position| values.get(position)).copied().ok_or(Unreadable(column))
        };
        // Any JSON is allowed in it, also what this reader does not take, and only the trace depends on it.
        let headers: serde_json::Value = serde_json::from_str(value("headers")?).unwrap_or_default();
        Ok(ClaimedEvent {
            seq: value("seq")?.parse().map_err(|_| Unreadable("seq"))?,
            aggregate_id: value("aggregate_id")?.parse().map_err(|_| Unreadable("aggregate_id"))?,
            created_at,
            refused_before: false,
            message: Outgoing {
                id: value("event_id")?.parse().map_err(|_| Unreadable("event_id"))?,
                event_type: value("event_type")?.to_owned(),
                lane: value("lane")?.parse().map_err(|_| Unreadable("lane"))?,
                body: value("payload")?.as_bytes().to_vec(),
                traceparent: headers.get("traceparent").and_then(|text| text.as_str()).map(str::to_owned),
            },
        })
    }
}

/// What is left of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Unreadable("its end is missing"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take(N)?.try_into().map_err(|_| Unreadable("a number"))
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_be_bytes)
    }

    /// Up to the next zero byte.
    fn text(&mut self) -> Result<&'a str, Unreadable> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Unreadable("a name's end is missing"))?;
        let text = self.take(end)?;
        self.take(1)?;
        str::from_utf8(text).map_err(|_| Unreadable("a name in UTF-8"))
    }
}
