//! `Idempotency-Key`: a caller that is in doubt asks again, and gets the answer that it missed.

use axum::{
    extract::OptionalFromRequestParts,
    http::{HeaderName, HeaderValue, request::Parts},
    response::Response,
};

use crate::problem::Problem;

/// The name of the header.
const HEADER: &str = "idempotency-key";

/// The longest key. A UUID has 36 characters.
const LONGEST: usize = 255;

/// Says on a repeated answer that it is one.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a caller calls one charge or one refund: the same at every repetition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Visible ASCII, as it stands. Quotes are part of the key: most providers take the header for a plain string.
    fn parse(value: &HeaderValue) -> Option<Self> {
        let key = value.to_str().ok()?;
        let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        (is_visible && (1..=LONGEST).contains(&key.len())).then(|| Self(key.to_owned()))
    }
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

/// The first answer, given again.
pub(crate) fn replayed(mut first: Response) -> Response {
    first.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    first
}
