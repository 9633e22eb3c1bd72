//! The HTTP API, and what stands around its handlers.

use std::time::Duration;

use axum::{
    BoxError, Router,
    error_handling::HandleErrorLayer,
    extract::DefaultBodyLimit,
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tower::{
    ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed, load_shed::LoadShedLayer,
    timeout::TimeoutLayer,
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    Provider, charges::charge, faults, problem::Problem, read_charges::read_charges, refunds::refund,
};

/// The largest body, in bytes. A charge takes about two hundred, a list of faults not much more.
const LARGEST_BODY: usize = 16 * 1024;

/// Requests at the same time; more are answered with 503.
const MAX_REQUESTS: usize = 256;

/// How long a request may take. It bounds a body that trickles in. Longer than the longest answer on demand: a minute's
/// wait, three seconds for a connection and ten for a statement.
const REQUEST_DEADLINE: Duration = Duration::from_secs(75);

/// The routes of the payment provider.
pub fn router(provider: Provider) -> Router {
    let guarded = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(overloaded_or_late))
        .layer(LoadShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS))
        .layer(TimeoutLayer::new(REQUEST_DEADLINE));
    Router::new()
        .route("/charges", post(charge).get(read_charges))
        .route("/refunds", post(refund))
        .layer(guarded)
        // Outside the limit: when faults have all the places taken, they can still be ended.
        .route("/faults", get(faults::show).put(faults::replace))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(CatchPanicLayer::new())
        .layer(middleware::map_response(as_problem))
        .with_state(provider)
}

async fn overloaded_or_late(error: BoxError) -> Response {
    let overloaded = error.is::<load_shed::error::Overloaded>();
    if overloaded { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::GATEWAY_TIMEOUT }.into_response()
}

/// Gives an error that has no problem of its own, from a layer or from the router, the one of its status.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let content_type = response.headers().get(header::CONTENT_TYPE);
    if !is_error || content_type.is_some_and(|kind| kind == "application/problem+json") {
        return response;
    }
    let mut problem = Problem::from_status(status).into_response();
    if let Some(allow) = response.headers().get(header::ALLOW) {
        problem.headers_mut().insert(header::ALLOW, allow.clone());
    }
    problem
}
