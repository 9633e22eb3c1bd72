//! Every error that a caller can see: RFC 9457 problem details. The cause goes to the log, once, here.

use std::fmt::Display;

use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use runtime::database::{is_away, is_locked};
use serde::{Serialize, de::DeserializeOwned};

/// What went wrong, as a caller is told.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    /// A name that stays the same: programs decide by it, people read `title`.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// What all types begin with. Another company's problems have another name.
const TYPE_PREFIX: &str = "urn:provider:problem:";

/// How long a caller should wait before it comes back, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &'static str) -> Self {
        Self { kind: format!("{TYPE_PREFIX}{kind}"), title, status: status.as_u16(), detail: None }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        // Details quote what the caller sent: bounded, so that an error is never larger than its cause.
        self.detail = Some(detail.into().chars().take(300).collect());
        self
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        let title = "The request cannot be accepted";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", title).detail(detail)
    }

    pub(crate) fn declined() -> Self {
        Self::new(StatusCode::PAYMENT_REQUIRED, "declined", "The charge is declined")
            .detail("the customer has no money; nothing was taken")
    }

    pub(crate) fn no_such_charge() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-charge", "There is no such captured charge")
    }

    pub(crate) fn exceeds_charge() -> Self {
        let title = "The refunds would exceed the charge";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "refund-exceeds-charge", title)
    }

    pub(crate) fn bad_key() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-key", "The Idempotency-Key cannot be used")
            .detail("one header, 1 to 255 visible ASCII characters")
    }

    /// The first request with this key is still being worked on.
    pub(crate) fn key_in_use() -> Self {
        Self::new(StatusCode::CONFLICT, "key-in-use", "A request with this Idempotency-Key is under way")
            .detail("ask again, with the same key")
    }

    pub(crate) fn key_reused() -> Self {
        let title = "This Idempotency-Key belongs to another request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", title)
    }

    pub(crate) fn bad_query(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-query", "The query cannot be understood").detail(detail)
    }

    fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not at the moment").detail(detail)
    }

    /// Our own fault. The caller learns only that.
    pub(crate) fn internal(cause: impl Display) -> Self {
        tracing::error!(%cause, "a request failed");
        Self::broken()
    }

    /// A fault on demand. To the caller it looks like any other; in the log it is no error.
    pub(crate) fn struck() -> Self {
        tracing::info!("a request failed on demand");
        Self::broken()
    }

    fn broken() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong on our side")
    }

    /// For answers that were made by a layer and not by a handler: no body of its own, or a plain one.
    pub(crate) fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::new(status, "not-found", "There is nothing at this path"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method-not-allowed", "Not with this method; see the Allow header")
            }
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable("too many requests at the same time"),
            StatusCode::GATEWAY_TIMEOUT => Self::new(status, "timeout", "It took too long")
                .detail("what became of it is unknown: ask again with the same Idempotency-Key"),
            StatusCode::INTERNAL_SERVER_ERROR => Self::internal("a handler panicked"),
            _ => Self::new(status, "http", "The request was refused"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// The one table from database failures to answers.
impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        if is_locked(&error) {
            return Self::new(StatusCode::CONFLICT, "contended", "Somebody else has it in hand")
                .detail("nothing was written; ask again");
        }
        // No such table: this process has only just started, and is about to make them.
        let code = error.as_database_error().and_then(|refusal| refusal.code());
        if is_away(&error) || code.is_some_and(|code| code == "42P01") {
            tracing::warn!(cause = %error, "a request failed for want of the database");
            return Self::unavailable("the ledger is busy or away; nothing is known to have been written");
        }
        Self::internal(error)
    }
}

/// `axum::Json` for requests, with problems for rejections.
pub(crate) struct ProblemJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ProblemJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::JsonDataError(error)) => Err(Problem::invalid(error.body_text())),
            Err(JsonRejection::MissingJsonContentType(error)) => {
                let title = "The body must be plain JSON";
                Err(Problem::new(error.status(), "unsupported-media-type", title))
            }
            Err(other) if other.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Problem::new(other.status(), "too-large", "The body is too large")
                    .detail("at most 16 KiB"))
            }
            Err(other) => {
                let title = "The body is not valid JSON";
                Err(Problem::new(StatusCode::BAD_REQUEST, "malformed-json", title).detail(other.body_text()))
            }
        }
    }
}
