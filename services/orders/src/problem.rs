//! Every error that a client can see: RFC 9457 problem details, with a stable `type`.
//!
//! The client gets a short sentence. The cause, with its whole chain, goes to the log, once, here.

use std::fmt::{self, Display};

use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use runtime::database::{is_away, is_locked};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

/// What went wrong, as a client is told: problem details (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// A name that stays the same: programs decide by it, people read `title`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// For people: what kind of problem this is.
    pub(crate) title: &'static str,
    /// The status of the answer, once more.
    #[schema(minimum = 400, maximum = 599)]
    pub(crate) status: u16,
    /// For people: what it is about this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 300)]
    detail: Option<String>,
    /// For people: what would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hint: Option<&'static str>,
}

/// What all types begin with; `docs/http.md` has one line for each.
pub(crate) const TYPE_PREFIX: &str = "urn:shop:problem:";

/// How long a client should wait before it comes back, in seconds.
pub(crate) const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &'static str) -> Self {
        Self {
            kind: format!("{TYPE_PREFIX}{kind}"),
            title,
            status: status.as_u16(),
            detail: None,
            hint: None,
        }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        // Details quote what the client sent: bounded, so that an error is never larger than its cause.
        self.detail = Some(detail.into().chars().take(300).collect());
        self
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-order", "The order cannot be accepted")
            .detail(detail)
    }

    pub(crate) fn unknown_sku(line: usize) -> Self {
        let problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-sku", "There is no such product");
        problem.detail(format!("lines[{line}].sku is not in the catalogue"))
    }

    pub(crate) fn no_such_order() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-order", "There is no such order")
    }

    /// Somebody else kept changing the same order.
    pub(crate) fn contended() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "contended",
            "The order was changed by somebody else at the same time",
        )
    }

    pub(crate) fn bad_key() -> Self {
        let mut problem =
            Self::new(StatusCode::BAD_REQUEST, "bad-idempotency-key", "The Idempotency-Key cannot be used");
        problem.hint = Some("one header, 1 to 255 visible ASCII characters, best a UUID in quotes");
        problem
    }

    /// The first request with this key is still being worked on, or nobody can say what became of it.
    pub(crate) fn key_in_use() -> Self {
        let title = "A request with this Idempotency-Key is under way";
        Self::new(StatusCode::CONFLICT, "idempotency-key-in-use", title)
            .detail("ask again, with the same key")
    }

    pub(crate) fn key_reused() -> Self {
        let title = "This Idempotency-Key belongs to another order";
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", title);
        problem.hint = Some("a new key for each order; the same key only to ask for the same order again");
        problem
    }

    pub(crate) fn bad_query(detail: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-query", "The query cannot be understood").detail(detail)
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed-json", "The body is not valid JSON").detail(detail)
    }

    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unreadable-body", "The body could not be read").detail(detail)
    }

    pub(crate) fn starting() -> Self {
        Self::unavailable("the service is starting, or waiting for its database")
    }

    /// Somebody has locked a whole table.
    pub(crate) fn locked() -> Self {
        Self::unavailable("the database is being worked on; nothing was written")
    }

    fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not at the moment").detail(detail)
    }

    /// Our own fault. The client learns only that.
    pub(crate) fn internal(cause: impl Display) -> Self {
        tracing::error!(%cause, "a request failed");
        Self::our_fault()
    }

    pub(crate) fn our_fault() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong on our side")
    }

    /// For answers that were made by a layer and not by a handler: no body of its own, or a plain one.
    pub(crate) fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::new(status, "not-found", "There is nothing at this path"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method-not-allowed", "Not with this method; see the Allow header")
            }
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(),
            StatusCode::GATEWAY_TIMEOUT => Self::late(),
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable("too many requests at the same time"),
            StatusCode::INTERNAL_SERVER_ERROR => Self::internal("a handler panicked"),
            _ => Self::new(status, "http", "The request was refused"),
        }
    }

    pub(crate) fn late() -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", "It took too long").detail(
            "whether the order was accepted is unknown: ask again with the same Idempotency-Key, or look it up",
        )
    }

    pub(crate) fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large")
            .detail("at most 64 KiB")
    }

    pub(crate) fn unsupported_media(detail: &str) -> Self {
        let mut problem = Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "The body must be plain JSON",
        );
        problem.hint = Some("curl --json '{…}' sends the right content type; curl -d does not");
        problem.detail(detail)
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.detail.as_deref().unwrap_or_default())
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
            Self::contended()
        } else if is_away(&error) {
            tracing::warn!(cause = %error, "a request failed for want of the database");
            Self::unavailable("the database is busy or away; nothing is known to have been written")
        } else {
            Self::internal(error)
        }
    }
}

/// `axum::Json` for requests, with problems for rejections.
pub(crate) struct ProblemJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ProblemJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let encoding = request.headers().get(header::CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return Err(Problem::unsupported_media("Content-Encoding is not supported"));
        }
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::JsonDataError(error)) => Err(Problem::invalid(error.body_text())),
            Err(JsonRejection::JsonSyntaxError(error)) => Err(Problem::malformed(error.body_text())),
            Err(JsonRejection::MissingJsonContentType(_)) => {
                Err(Problem::unsupported_media("Content-Type is not application/json"))
            }
            Err(other) if other.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(Problem::too_large()),
            Err(other) => Err(Problem::unreadable(other.body_text())),
        }
    }
}
