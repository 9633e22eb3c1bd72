//! The problems that only the order service has. The others are in `service::problem`.

use axum::http::StatusCode;
use service::problem::Problem;

pub(crate) fn invalid_order(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-order", "Invalid order").detail(detail)
}

pub(crate) fn unknown_sku(line: usize) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-sku", "Unknown product")
        .detail(format!("lines[{line}].sku is not in the catalogue"))
}

pub(crate) fn no_such_order() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-order", "Order not found")
}

pub(crate) fn bad_key() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-idempotency-key", "Invalid Idempotency-Key")
        .hint("one header, 1 to 255 visible ASCII characters, preferably a UUID in quotes")
}

/// The first request with this key is in progress, or its outcome is unknown.
pub(crate) fn key_in_use() -> Problem {
    let title = "A request with this Idempotency-Key is in progress";
    Problem::new(StatusCode::CONFLICT, "idempotency-key-in-use", title).detail("retry with the same key")
}

pub(crate) fn key_reused() -> Problem {
    let title = "This Idempotency-Key belongs to another order";
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", title)
        .hint("use a new key for each order, and the same key only to retry the same order")
}

pub(crate) fn bad_query(detail: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-query", "Invalid query").detail(detail)
}

pub(crate) fn starting() -> Problem {
    Problem::unavailable("the service is starting, or waiting for its database")
}

/// A table is locked: an administrator is at work.
pub(crate) fn table_locked() -> Problem {
    Problem::unavailable("a table is locked for maintenance; nothing was written")
}

pub(crate) fn timed_out() -> Problem {
    Problem::timeout(
        "whether the order was accepted is unknown: retry with the same Idempotency-Key, or look the order up",
    )
}

/// The problem of a status that a layer or the router has answered with, and not a handler.
pub(crate) fn from_status(status: StatusCode) -> Problem {
    if status == StatusCode::GATEWAY_TIMEOUT { timed_out() } else { Problem::from_status(status) }
}
