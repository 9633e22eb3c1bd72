//! The errors of the control API: RFC 9457 problem details.

use axum::{
    Json,
    extract::{FromRequest, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::Error;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A detail quotes what a client sent. The limit keeps the answer small.
const MAX_DETAIL_CHARS: usize = 300;

#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, detail: &str) -> Self {
        let (kind, title) = match status {
            StatusCode::BAD_REQUEST => ("urn:fault-proxy:problem:malformed", "The body is not valid JSON"),
            StatusCode::NOT_FOUND => {
                ("urn:fault-proxy:problem:not-found", "The path or the route is unknown")
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                ("urn:fault-proxy:problem:method-not-allowed", "The path does not support this method")
            }
            StatusCode::PAYLOAD_TOO_LARGE => ("urn:fault-proxy:problem:too-large", "The body is too large"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                ("urn:fault-proxy:problem:unsupported-media-type", "The body must be application/json")
            }
            StatusCode::UNPROCESSABLE_ENTITY => {
                ("urn:fault-proxy:problem:invalid-fault", "A fault of the list is invalid")
            }
            _ => ("about:blank", "The request failed"),
        };
        let detail = detail.chars().take(MAX_DETAIL_CHARS).collect();
        Self { kind, title, status: status.as_u16(), detail }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::UnknownRoute(_) => StatusCode::NOT_FOUND,
            Error::InvalidFault(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, &error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], Json(self)).into_response()
    }
}

/// Gives an error of the router, which has no body, the problem of its status.
pub(crate) async fn complete(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.headers().get(header::CONTENT_TYPE) == Some(&PROBLEM_JSON) {
        return response;
    }
    let mut problem = Problem::new(status, "").into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}

/// A JSON body whose rejections are problems.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection @ JsonRejection::JsonDataError(_)) => {
                Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, &rejection.body_text()))
            }
            Err(rejection) => Err(Problem::new(rejection.status(), &rejection.body_text())),
        }
    }
}
