//! The HTTP API, and what stands around its handlers.

use std::time::Duration;

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    extract::DefaultBodyLimit,
    http::StatusCode,
    middleware,
    routing::{get, post},
};
use runtime::problem::{complete, overloaded_or_late};
use tower::{
    ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer, timeout::TimeoutLayer,
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
        .layer(middleware::map_response(|response| async move { complete(response, Problem::from_status) }))
        .with_state(provider)
}
