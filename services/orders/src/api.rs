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
use tower_http::{
    catch_panic::CatchPanicLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
};

use crate::{
    Shop, cancel_order::cancel_order, place_order::place_order, problem::Problem, read_orders,
    request_context,
};

/// The largest body, in bytes. A hundred lines take about six thousand.
const LARGEST_BODY: usize = 64 * 1024;

/// How long a request may take. Its client has given up long before the database does.
const REQUEST_DEADLINE: Duration = Duration::from_secs(8);

/// The routes of the order service.
pub fn router(shop: Shop) -> Router {
    let guarded = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(HandleErrorLayer::new(overloaded_or_late))
        .layer(LoadShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::new(shop.max_requests.into()))
        .layer(TimeoutLayer::new(REQUEST_DEADLINE))
        .layer(DefaultBodyLimit::max(LARGEST_BODY));
    // A request gets its id and its trace before anything else, so that whatever becomes of it can be found in the
    // logs; errors of the layers above have become problems by then.
    let observed = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(middleware::from_fn(request_context::trace))
        .layer(middleware::map_response(|response| async move { complete(response, Problem::from_status) }));
    Router::new()
        .route("/orders", post(place_order).get(read_orders::list_orders))
        .route("/orders/{id}", get(read_orders::read_order))
        .route("/orders/{id}/cancellation", post(cancel_order))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(guarded)
        .layer(observed)
        .with_state(shop)
}
