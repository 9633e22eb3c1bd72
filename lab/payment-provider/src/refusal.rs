//! What the provider answers when it does not do what it was asked for: problem details (RFC 9457).

use axum::{
    Json,
    extract::rejection::{JsonRejection, QueryRejection},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde_json::json;

#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// The last part of the problem's `type`.
    pub(crate) kind: &'static str,
    pub(crate) detail: String,
}

pub(crate) fn refusal(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Refusal {
    Refusal { status, kind, detail: detail.into() }
}

pub(crate) fn invalid(detail: impl Into<String>) -> Refusal {
    refusal(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", detail)
}

/// The first request with this key is in progress.
pub(crate) fn key_in_use() -> Refusal {
    refusal(StatusCode::CONFLICT, "key-in-use", "retry with the same key")
}

pub(crate) fn key_reused() -> Refusal {
    let detail = "this Idempotency-Key belongs to another request";
    refusal(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", detail)
}

/// A fault on demand: the caller sees an internal error like any other.
pub(crate) fn injected() -> Refusal {
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal", "")
}

impl From<sqlx::Error> for Refusal {
    /// The tables may not exist yet, or the database may be away: retry.
    fn from(error: sqlx::Error) -> Self {
        tracing::warn!(cause = %error, "request failed");
        refusal(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "the database does not answer as it should")
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        refusal(rejection.status(), "invalid-request", rejection.body_text())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(rejection: QueryRejection) -> Self {
        refusal(rejection.status(), "bad-query", rejection.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { status, kind, detail } = self;
        let body = json!({ "type": format!("urn:provider:problem:{kind}"), "status": status.as_u16(), "detail": detail });
        let content_type = [(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
        (status, content_type, Json(body)).into_response()
    }
}
