//! `Idempotency-Key`: a caller that got no answer retries, and gets the first answer.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use service::problem::Problem;

const HEADER: &str = "idempotency-key";

/// The longest key. A UUID has 36 characters.
const MAX_LENGTH: usize = 255;

/// Marks a repeated answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The caller's name for one charge or one refund, the same at every retry: one header of visible ASCII, unchanged. Quotes are
/// part of the key: most providers read the header as a plain string.
pub(crate) fn key_of(request: &Request) -> Result<Option<String>, Problem> {
    let mut values = request.headers().get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    match key.filter(|key| (1..=MAX_LENGTH).contains(&key.len())) {
        Some(key) if values.next().is_none() => Ok(Some(key.to_owned())),
        _ => {
            let title = "One Idempotency-Key, of 1 to 255 visible ASCII characters";
            Err(Problem::new(StatusCode::BAD_REQUEST, "bad-key", title))
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
