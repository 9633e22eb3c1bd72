//! `Idempotency-Key`: a client that is in doubt asks again, and gets the answer that it missed.
//!
//! <https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/>

use std::{borrow::Cow, time::Duration};

use axum::{
    extract::OptionalFromRequestParts,
    http::{HeaderValue, request::Parts},
};
use sqlx::PgPool;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use utoipa::{
    IntoParams,
    openapi::{
        ObjectBuilder, Required, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

use crate::{
    Shop,
    order_request::PricedOrder,
    problem::Problem,
    read_orders::{OrderView, lines_of},
};

/// The name of the header.
const HEADER: &str = "idempotency-key";

/// The longest key. A UUID has 36 characters.
const LONGEST: usize = 255;

/// What a client calls its attempt to place one order: the same at every repetition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A quoted string, as the draft has it, or a bare word, as many clients send it. Both name the same key.
    fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        let key: Cow<'_, str> = match text.strip_prefix('"') {
            Some(rest) => unquote(rest.strip_suffix('"')?)?.into(),
            None => text.into(),
        };
        let characters_are_right = if text.starts_with('"') {
            key.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        } else {
            key.bytes().all(|byte| byte.is_ascii_graphic() && !br#"",;\"#.contains(&byte))
        };
        (characters_are_right && (1..=LONGEST).contains(&key.len())).then(|| Self(key.into_owned()))
    }

    /// The first answer under this key, to the same request. `None`: the key was forgotten this very moment.
    pub(crate) async fn first_answer(
        &self,
        shop: &Shop,
        asked: &PricedOrder,
    ) -> Result<Option<OrderView>, Problem> {
        let first = sqlx::query!(
            "select orders.id, orders.customer_id, orders.total_amount, orders.placed_at
             from idempotency_keys known join orders on orders.id = known.order_id
             where known.key = $1",
            self.0,
        )
        .fetch_optional(&shop.pool)
        .await?;
        let Some(first) = first else { return Ok(None) };
        let lines = lines_of(&shop.pool, first.id).await?;
        // What was asked for, and not what it costs: a price may have changed since.
        let is_same = first.customer_id == asked.customer_id
            && lines
                .iter()
                .map(|line| (&line.sku, line.quantity))
                .eq(asked.lines.iter().map(|line| (&line.sku, line.quantity)));
        if !is_same {
            return Err(Problem::key_reused());
        }
        let order = PricedOrder { customer_id: first.customer_id, lines, total: first.total_amount };
        Ok(Some(OrderView::placed(first.id, order, first.placed_at)))
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
            (Some(value), None) => Self::parse(value).map(Some).ok_or_else(Problem::bad_key),
            (Some(_), Some(_)) => Err(Problem::bad_key()),
        }
    }
}

/// What a key looks like in its header, as a regular expression: first in quotes, then as a bare word.
fn pattern() -> String {
    format!(r#"^(?:"(?:[ !#-\[\]-~]|\\["\\]){{1,{LONGEST}}}"|[!#-+\--:<-\[\]-~]{{1,{LONGEST}}})$"#)
}

impl IntoParams for IdempotencyKey {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern()));
        let told = format!(
            "What the client calls its attempt, the same at every repetition: 1 to {LONGEST} visible ASCII characters, \
             best a UUID in quotes. At most one. Remembered for a day."
        );
        let parameter = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(told))
            .schema(Some(schema))
            .example(Some("\"6d1a4e0c-8f0e-4a2b-9c55-2f7a6f0f2a10\"".into()));
        vec![parameter.build()]
    }
}

/// How often old keys are looked for, how long to pause after each thousand, and how long that may take.
const EVERY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(15);

/// Forgets keys that are older than `remember`, once a minute, until `stop`. From then on they are new ones.
pub async fn forget(pool: PgPool, remember: Duration, stop: CancellationToken) {
    let rounds = async {
        loop {
            match tokio::time::timeout(PATIENCE, erase(&pool, remember)).await {
                Ok(Ok(1000)) => sleep(PAUSE).await,
                Ok(Ok(_)) => sleep(EVERY).await,
                Ok(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "old keys stay for now");
                    sleep(EVERY).await;
                }
                Err(_) => {
                    tracing::warn!("old keys stay for now: erasing them took too long");
                    sleep(EVERY).await;
                }
            }
        }
    };
    stop.run_until_cancelled(rounds).await;
}

/// Erases the thousand oldest of those that are too old. Several instances may do so at once: each skips what another has
/// in hand.
async fn erase(pool: &PgPool, remember: Duration) -> Result<u64, sqlx::Error> {
    let erased = sqlx::query!(
        "delete from idempotency_keys where key in (
             select key from idempotency_keys
             where created_at < clock_timestamp() - $1::float8 * interval '1 second'
             order by created_at limit 1000 for update skip locked)",
        remember.as_secs_f64(),
    )
    .execute(pool)
    .await?;
    Ok(erased.rows_affected())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What becomes of a header; and the pattern in the document has to agree.
    fn key(text: &str) -> Option<String> {
        let parsed =
            IdempotencyKey::parse(&HeaderValue::from_bytes(text.as_bytes()).unwrap()).map(|key| key.0);
        let promised = testbed::jsonschema::is_valid(&json!({ "pattern": pattern() }), &json!(text));
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
    fn what_is_no_key_is_not_taken_for_one() {
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
