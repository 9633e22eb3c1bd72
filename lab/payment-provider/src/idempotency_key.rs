//! `Idempotency-Key`: a caller that got no answer retries, and gets the first answer.

use axum::{
    extract::OptionalFromRequestParts,
    http::{HeaderName, HeaderValue, StatusCode, request::Parts},
    response::Response,
};
use service::problem::Problem;

const HEADER: &str = "idempotency-key";

/// The longest key. A UUID has 36 characters.
const MAX_LENGTH: usize = 255;

/// Marks a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A caller's name for one charge or one refund: the same at every retry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses visible ASCII, unchanged. Quotes are part of the key: most providers read the header as a plain string.
    fn parse(value: &HeaderValue) -> Option<Self> {
        let key = value.to_str().ok()?;
        let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        (is_visible && (1..=MAX_LENGTH).contains(&key.len())).then(|| Self(key.to_owned()))
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        let bad_key = || {
            let title = "One Idempotency-Key, of 1 to 255 visible ASCII characters";
            Problem::new(StatusCode::BAD_REQUEST, "bad-key", title)
        };
        let mut values = parts.headers.get_all(HEADER).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Ok(Some(Self::parse(value).ok_or_else(bad_key)?)),
            (Some(_), Some(_)) => Err(bad_key()),
        }
    }
}

pub(crate) fn key_reused() -> Problem {
    let title = "This Idempotency-Key belongs to another request";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", title)
}

/// Marks an answer as a repetition of the first one.
pub(crate) fn mark_replayed(mut first: Response) -> Response {
    first.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    first
}
