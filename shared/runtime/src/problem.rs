//! What an operator is told when something is refused: RFC 9457 problem details, as the public API has them.
//!
//! The order service's own problems, with all that can be wrong about an order, are in `services/orders`.

use axum::{
    BoxError, Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use tower::load_shed;

use crate::database;

/// What a request is answered with that a layer has refused: 503 where there are too many, 504 where it took too long.
pub async fn overloaded_or_late(error: BoxError) -> StatusCode {
    if error.is::<load_shed::error::Overloaded>() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::GATEWAY_TIMEOUT
    }
}

/// Gives an error that has no problem of its own, from a layer or from the router, the one of its status.
pub fn complete<P: IntoResponse>(response: Response, of: impl FnOnce(StatusCode) -> P) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if !is_error || content_type.is_some_and(|kind| kind == "application/problem+json") {
        return response;
    }
    let mut problem = of(status).into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}

/// What went wrong, as a client is told.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// A name that stays the same: programs decide by it, people read `title`.
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Problem {
    /// `kind` is what stands behind `urn:shop:problem:`.
    pub fn new(status: StatusCode, kind: &str, title: &'static str) -> Self {
        Self { kind: format!("urn:shop:problem:{kind}"), title, status: status.as_u16(), detail: None }
    }

    /// With a sentence. Details may quote what the client sent: bounded, so that no error is larger than its cause.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().chars().take(300).collect());
        self
    }

    /// 404.
    pub fn no_such(detail: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing").detail(detail)
    }

    /// 400.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", "The request cannot be understood").detail(detail)
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "This needs the operator's token")
            .detail("send Authorization: Bearer, and the token that the service was started with")
    }

    /// For answers that were made by a layer and not by a handler: no body of its own, or a plain one.
    pub(crate) fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::new(status, "not-found", "There is nothing at this path"),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(status, "method-not-allowed", "Not with this method; see the Allow header")
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                Self::new(status, "unavailable", "Not at the moment").detail("other operators are at work")
            }
            StatusCode::GATEWAY_TIMEOUT => Self::new(status, "timeout", "It took too long")
                .detail("how much of it was done is unknown: list again before you repeat it"),
            StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!("a handler of the operator's panicked");
                Self::new(status, "internal", "Something went wrong on our side")
            }
            _ => Self::new(status, "bad-request", "The request was refused"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"admin\""));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        if database::is_locked(&error) {
            return Self::new(StatusCode::CONFLICT, "contended", "Somebody else has it in hand; try again");
        }
        if database::is_away(&error) {
            tracing::warn!(cause = %error, "an operator's request failed for want of the database");
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not at the moment")
                .detail("the database is busy or away; nothing is known to have been written");
        }
        tracing::error!(cause = %error, "an operator's request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong on our side")
    }
}

/// `axum::Json` for requests, with problems for rejections.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body must be plain JSON",
            )),
            Err(other) if other.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Problem::new(other.status(), "too-large", "The body is too large"))
            }
            Err(other) => Err(Problem::bad_request(other.body_text())),
        }
    }
}
