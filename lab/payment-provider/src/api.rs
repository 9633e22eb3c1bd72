//! The HTTP API: its routes and the layers around them.

use std::time::Duration;

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    extract::DefaultBodyLimit,
    http::StatusCode,
    middleware,
    routing::{get, post},
};
use service::problem::{complete, limit_error};
use tower::{
    ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer, timeout::TimeoutLayer,
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{Provider, charges::charge, faults, problems, read_charges::read_charges, refunds::refund};

/// The largest body, in bytes. A charge takes about two hundred, a list of faults not much more.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Requests at the same time; further ones are answered with 503.
const MAX_REQUESTS: usize = 256;

/// How long a request may take. It bounds a body that arrives slowly. Longer than the longest answer on demand: a minute's
/// wait, three seconds for a connection and ten for a statement.
const REQUEST_DEADLINE: Duration = Duration::from_secs(75);

/// The routes of the payment provider, with their layers.
pub fn router(provider: Provider) -> Router {
    let guarded = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(limit_error))
        .layer(LoadShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS))
        .layer(TimeoutLayer::new(REQUEST_DEADLINE));
    Router::new()
        .route("/charges", post(charge).get(read_charges))
        .route("/refunds", post(refund))
        .layer(guarded)
        // Outside the limits: faults can still be ended while requests that wait for them use up the limit.
        .route("/faults", get(faults::show).put(faults::replace))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(CatchPanicLayer::new())
        .layer(middleware::map_response(|response| async move { complete(response, problems::from_status) }))
        .with_state(provider)
}
