//! The problems of the provider's API: those of `service::problem`, under type names of their own.

use axum::{
    extract::{FromRequest, Request},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use service::problem::{Problem, TYPE_PREFIX, read_json};

/// The prefix of every `type` here: the provider is another company, so its problems are not the shop's.
const OWN_TYPE_PREFIX: &str = "urn:provider:problem:";

/// A problem that is answered under [`OWN_TYPE_PREFIX`].
#[derive(Debug)]
pub(crate) struct ProviderProblem(Problem);

impl From<Problem> for ProviderProblem {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<sqlx::Error> for ProviderProblem {
    fn from(error: sqlx::Error) -> Self {
        // No such table: the process has just started and has not run its migrations yet.
        let code = error.as_database_error().and_then(|refusal| refusal.code());
        if code.is_some_and(|code| code == "42P01") {
            tracing::warn!(cause = %error, "request failed: the tables do not exist yet");
            return Self(Problem::unavailable("the provider is starting, or waiting for its database"));
        }
        Self(error.into())
    }
}

impl IntoResponse for ProviderProblem {
    fn into_response(self) -> Response {
        with_own_type(self.0).into_response()
    }
}

fn with_own_type(mut problem: Problem) -> Problem {
    problem.kind = problem.kind.replacen(TYPE_PREFIX, OWN_TYPE_PREFIX, 1);
    problem
}

pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-request", "Invalid request").detail(detail)
}

pub(crate) fn declined() -> Problem {
    Problem::new(StatusCode::PAYMENT_REQUIRED, "declined", "Charge declined")
        .detail("the customer has no money; nothing was charged")
}

pub(crate) fn no_such_charge() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-charge", "Captured charge not found")
}

pub(crate) fn exceeds_charge() -> Problem {
    let title = "The refunds would exceed the charge";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refund-exceeds-charge", title)
}

pub(crate) fn bad_key() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-key", "Invalid Idempotency-Key")
        .detail("one header, 1 to 255 visible ASCII characters")
}

/// The first request with this key is in progress.
pub(crate) fn key_in_use() -> Problem {
    let title = "A request with this Idempotency-Key is in progress";
    Problem::new(StatusCode::CONFLICT, "key-in-use", title).detail("retry with the same key")
}

pub(crate) fn key_reused() -> Problem {
    let title = "This Idempotency-Key belongs to another request";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key-reused", title)
}

pub(crate) fn bad_query(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-query", "Invalid query").detail(detail)
}

/// A fault on demand. The caller sees an internal error like any other; the log shows no error.
pub(crate) fn injected() -> Problem {
    tracing::info!("request failed on demand");
    Problem::internal_error()
}

/// The problem of a status that a layer or the router has answered with, and not a handler.
pub(crate) fn from_status(status: StatusCode) -> Problem {
    with_own_type(match status {
        StatusCode::GATEWAY_TIMEOUT => {
            Problem::timeout("the outcome is unknown: retry with the same Idempotency-Key")
        }
        _ => Problem::from_status(status),
    })
}

/// A JSON body; one that does not fit `T` is an invalid request.
pub(crate) struct ProviderJson<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ProviderJson<T> {
    type Rejection = ProviderProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, ProviderProblem> {
        match read_json(request, invalid).await {
            Ok(body) => Ok(Self(body)),
            // The limit here is lower than the services'.
            Err(problem) if problem.status == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(problem.detail("at most 16 KiB").into())
            }
            Err(problem) => Err(problem.into()),
        }
    }
}
