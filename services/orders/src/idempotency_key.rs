//! `Idempotency-Key`: a client that got no answer retries, and gets the first answer.
//!
//! <https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>

use std::{borrow::Cow, time::Duration};

use axum::{
    extract::OptionalFromRequestParts,
    http::{HeaderValue, request::Parts},
};
use database::{Erase, Pool, Retention, Window};
use events::{Money, OrderCreated};
use service::problem::Problem;
use utoipa::{
    IntoParams,
    openapi::{
        ObjectBuilder, Required, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

use crate::{
    problems,
    read_orders::{OrderView, lines_of},
};

const HEADER: &str = "idempotency-key";

/// The longest key. A UUID has 36 characters.
const MAX_LENGTH: usize = 255;

/// A client's name for its attempt to place one order: the same at every retry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses a quoted string, as the draft has it, or a bare word, as many clients send it. Both name the same key.
    fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        let key: Cow<'_, str> = match text.strip_prefix('"') {
            Some(rest) => unquote(rest.strip_suffix('"')?)?.into(),
            None => text.into(),
        };
        let valid = if text.starts_with('"') {
            key.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        } else {
            key.bytes().all(|byte| byte.is_ascii_graphic() && !br#"",;\"#.contains(&byte))
        };
        (valid && (1..=MAX_LENGTH).contains(&key.len())).then(|| Self(key.into_owned()))
    }

    /// The first answer under this key, if the request is the same. `None`: the key was erased at this moment.
    pub(crate) async fn first_answer(
        &self,
        pool: &Pool,
        requested: &OrderCreated,
    ) -> Result<Option<OrderView>, Problem> {
        let first = sqlx::query!(
            "select orders.id, orders.customer_id, orders.total_amount, orders.placed_at
             from idempotency_keys known join orders on orders.id = known.order_id
             where known.key = $1",
            self.0,
        )
        .fetch_optional(pool)
        .await?;
        let Some(first) = first else { return Ok(None) };
        let lines = lines_of(pool, first.id).await?;
        // Compares what was requested and not what it costs: a price may have changed since.
        let is_same = first.customer_id == requested.customer_id
            && lines
                .iter()
                .map(|line| (&line.sku, line.quantity))
                .eq(requested.lines.iter().map(|line| (&line.sku, line.quantity)));
        if !is_same {
            return Err(problems::key_reused());
        }
        let total = Money { amount: first.total_amount, ..requested.total.clone() };
        let order = OrderCreated { order_id: first.id, customer_id: first.customer_id, lines, total };
        Ok(Some(OrderView::placed(order, first.placed_at)))
    }
}

/// The inside of a quoted string (RFC 9651, section 3.3.3): only quotes and backslashes may be escaped, and must be.
fn unquote(inside: &str) -> Option<String> {
    let mut key = String::with_capacity(inside.len());
    let mut characters = inside.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => key.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            other => key.push(other),
        }
    }
    Some(key)
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        let mut values = parts.headers.get_all(HEADER).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Self::parse(value).map(Some).ok_or_else(problems::bad_key),
            (Some(_), Some(_)) => Err(problems::bad_key()),
        }
    }
}

/// A regular expression of the header, for the OpenAPI document: in quotes, or as a bare word.
fn pattern() -> String {
    format!(r#"^(?:"(?:[ !#-\[\]-~]|\\["\\]){{1,{MAX_LENGTH}}}"|[!#-+\--:<-\[\]-~]{{1,{MAX_LENGTH}}})$"#)
}

impl IntoParams for IdempotencyKey {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern()));
        let description = format!(
            "The client's name for its attempt, the same at every retry: 1 to {MAX_LENGTH} visible ASCII characters, \
             preferably a UUID in quotes. At most one. Kept for a day."
        );
        let parameter = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(schema))
            .example(Some("\"6d1a4e0c-8f0e-4a2b-9c55-2f7a6f0f2a10\"".into()));
        vec![parameter.build()]
    }
}

/// Erases keys that are older than `keep`. A request with an erased key is a new one.
pub fn retention(pool: Pool, keep: Duration) -> Retention<EraseKeys> {
    Retention::new("idempotency_keys", pool, EraseKeys(keep))
}

#[derive(Debug)]
pub struct EraseKeys(Duration);

/// Follows no key: each window erases the oldest thousand by an index on their time.
impl Erase for EraseKeys {
    type Key = ();
    const FIRST_KEY: () = ();

    /// Several instances may erase at once: each skips the rows that another has locked.
    async fn erase_window(&self, pool: &Pool, (): (), rows: i64) -> Result<Option<Window<()>>, sqlx::Error> {
        let done = sqlx::query!(
            "delete from idempotency_keys where key in (
                 select key from idempotency_keys
                 where created_at < clock_timestamp() - $1::float8 * interval '1 second'
                 order by created_at limit $2 for update skip locked)",
            self.0.as_secs_f64(),
            rows,
        )
        .execute(pool)
        .await?;
        let erased = i64::try_from(done.rows_affected()).unwrap_or(0);
        let is_full = erased == rows;
        Ok(Some(Window { last: Some(()), erased, some_are_young: false, is_full, more: is_full }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Parses a header, and checks that the pattern in the document agrees.
    fn key(text: &str) -> Option<String> {
        let parsed =
            IdempotencyKey::parse(&HeaderValue::from_bytes(text.as_bytes()).unwrap()).map(|key| key.0);
        let promised = jsonschema::is_valid(&json!({ "pattern": pattern() }), &json!(text));
        assert_eq!(parsed.is_some(), promised, "{text:?} and {}", pattern());
        parsed
    }

    #[test]
    fn a_quoted_key_and_a_bare_one_are_the_same() {
        let plain = "8e03978e-40d5-43dd-bc93-6894a57f9324";
        assert_eq!(key(plain).as_deref(), Some(plain));
        assert_eq!(key(&format!("\"{plain}\"")).as_deref(), Some(plain));
        assert_eq!(key(r#""a \"b\" \\c""#).as_deref(), Some(r#"a "b" \c"#));
    }

    #[test]
    fn an_invalid_key_is_refused() {
        let long = "x".repeat(256);
        for text in [
            "",
            "\"",
            "\"\"",
            "\"open",
            "\"a\"b\"",
            r#""\n""#,
            r#""\"#,
            "a b",
            "a,b",
            "\"a\";p=1",
            "käse",
            &long,
        ] {
            assert_eq!(key(text), None, "{text:?}");
        }
        for longest in
            ["x".repeat(255), format!("\"{}\"", "x".repeat(255)), format!("\"{}\"", "\\\"".repeat(255))]
        {
            assert!(key(&longest).is_some());
        }
        assert!(key(&format!("\"{}\"", "x".repeat(256))).is_none());
    }

    #[test]
    fn every_character_is_allowed_in_the_document_where_it_is_allowed_here() {
        for character in (0x20..0x7f_u8).map(char::from) {
            key(&format!("a{character}b"));
            key(&format!("\"a{character}b\""));
            key(&format!("\"a\\{character}b\""));
        }
    }
}
