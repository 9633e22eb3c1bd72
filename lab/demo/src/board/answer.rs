//! The answers to what a page requests.

use anyhow::{Error, Result, anyhow};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(crate) type Answer<T> = Result<Json<T>, Failure>;

/// Why there is no answer. Without a better reason, something behind the board has failed.
pub(crate) struct Failure(StatusCode, Error);

impl Failure {
    pub(crate) fn forbidden(reason: &'static str) -> Self {
        Self(StatusCode::FORBIDDEN, anyhow!(reason))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(StatusCode::BAD_GATEWAY, error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, format!("{:#}", self.1)).into_response()
    }
}

/// A request that is refused while a fault, a comparison or an order is in progress.
#[derive(Debug, thiserror::Error)]
#[error("one at a time: {0}")]
pub(crate) struct Busy(pub(crate) String);

/// The answer to a request that begins something.
pub(crate) fn begun(result: Result<()>) -> Answer<Value> {
    result.map(|()| Json(json!({}))).map_err(|error| {
        let status = if error.is::<Busy>() { StatusCode::CONFLICT } else { StatusCode::BAD_REQUEST };
        Failure(status, error)
    })
}
