//! Errors over HTTP: RFC 9457 problem details with a stable `type`. The client gets a short sentence; the cause, with its
//! whole chain, goes to the log, once.

use std::{
    error::Error,
    fmt::{self, Display},
};

use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use database::{is_locked, is_unavailable};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

/// What went wrong: problem details (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// A stable name: programs decide by it, people read `title`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people: the kind of problem.
    pub title: &'static str,
    /// The HTTP status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// For people: what is wrong with this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 300)]
    detail: Option<String>,
    /// For people: what would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    hint: Option<&'static str>,
}

/// The prefix of every `type`. `docs/http.md` lists them all.
pub const TYPE_PREFIX: &str = "urn:shop:problem:";

/// How long a client should wait before it retries, in seconds.
pub const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// The longest `detail`, in characters. Details quote what the client sent: an error stays smaller than its cause.
const MAX_DETAIL: usize = 300;

impl Problem {
    /// `kind` is the part after [`TYPE_PREFIX`].
    pub fn new(status: StatusCode, kind: &str, title: &'static str) -> Self {
        let kind = format!("{TYPE_PREFIX}{kind}");
        Self { kind, title, status: status.as_u16(), detail: None, hint: None }
    }

    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().chars().take(MAX_DETAIL).collect());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "Bad request").detail(detail)
    }

    pub fn malformed_json(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed-json", "Malformed JSON").detail(detail)
    }

    pub fn unreadable_body(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unreadable-body", "The body could not be read").detail(detail)
    }

    pub fn unauthorized(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "Unauthorized").detail(detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found").detail(detail)
    }

    /// Another request holds or keeps changing the same thing.
    pub fn contended() -> Self {
        Self::new(StatusCode::CONFLICT, "contended", "Conflicting change")
            .detail("another request is changing it; retry")
    }

    pub fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "Payload too large").detail("at most 64 KiB")
    }

    pub fn unsupported_media_type(detail: &str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "Unsupported media type")
            .detail(detail)
            .hint("send plain JSON: curl --json '{…}' sets the content type; curl -d does not")
    }

    pub fn unavailable(detail: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Service temporarily unavailable")
            .detail(detail)
    }

    pub fn timeout(detail: &str) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", "The request timed out").detail(detail)
    }

    /// A fault of the service. Logs the cause with its whole chain; the client learns only that there was a fault.
    pub fn internal(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let cause = format!("{:#}", anyhow::Error::from_boxed(cause.into()));
        tracing::error!(cause, "request failed");
        Self::internal_error()
    }

    /// The problem that [`internal`](Self::internal) answers with, without a log line.
    pub fn internal_error() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal server error")
    }

    /// The problem of a status that a layer or the router has answered with, and not a handler.
    pub fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::not_found("there is nothing at this path"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method-not-allowed", "Method not allowed").detail("see the Allow header")
            }
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(),
            StatusCode::GATEWAY_TIMEOUT => {
                Self::timeout("how much of it was done is unknown: check before you retry")
            }
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable("too many requests at the same time"),
            StatusCode::INTERNAL_SERVER_ERROR => Self::internal("a handler panicked"),
            _ => Self::new(status, "http", "The request was refused"),
        }
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
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Maps database errors to answers, for all routes of all services.
impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        if is_locked(&error) {
            Self::contended()
        } else if is_unavailable(&error) {
            tracing::warn!(cause = %error, "request failed: the database is unavailable");
            Self::unavailable("the database is busy or unavailable; whether anything was written is unknown")
        } else {
            Self::internal(error)
        }
    }
}

/// Reads a JSON body. `invalid` is the problem of a body that is JSON and does not fit `T`.
pub async fn read_json<T: DeserializeOwned>(
    request: Request,
    invalid: impl FnOnce(String) -> Problem,
) -> Result<T, Problem> {
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(Problem::unsupported_media_type("Content-Encoding is not supported"));
    }
    match Json::<T>::from_request(request, &()).await {
        Ok(Json(body)) => Ok(body),
        Err(JsonRejection::JsonDataError(error)) => Err(invalid(error.body_text())),
        Err(JsonRejection::JsonSyntaxError(error)) => Err(Problem::malformed_json(error.body_text())),
        Err(JsonRejection::MissingJsonContentType(_)) => {
            Err(Problem::unsupported_media_type("Content-Type is not application/json"))
        }
        Err(other) if other.status() == StatusCode::PAYLOAD_TOO_LARGE => Err(Problem::too_large()),
        Err(other) => Err(Problem::unreadable_body(other.body_text())),
    }
}

/// Replaces an error response that is not a problem yet, from a layer or from the router, by the problem of its status.
pub fn complete(response: Response, of_status: impl FnOnce(StatusCode) -> Problem) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if !is_error || content_type.is_some_and(|kind| kind == "application/problem+json") {
        return response;
    }
    let mut problem = of_status(status).into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}
