//! The problems that only the order service has. The others are in `service::problem`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::json;
use service::{
    problem::{Problem, RETRY_AFTER, TYPE_PREFIX},
    slow_body,
};
use utoipa::openapi::{
    Content, Header, ObjectBuilder, Ref, Response, ResponseBuilder, Type, example::ExampleBuilder,
    path::Operation,
};

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

/// Describes the problems of one operation in its document: one answer for each status, with an example for each type of
/// problem.
pub(crate) fn describe(operation: &mut Operation) {
    let mut problems = match operation.operation_id.as_deref() {
        Some("placeOrder") => vec![
            Problem::malformed_json(
                "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0",
            ),
            Problem::unreadable_body("Failed to buffer the request body"),
            bad_key(),
            key_in_use(),
            Problem::too_large(),
            slow_body(),
            Problem::unsupported_media_type("Content-Type is not application/json"),
            invalid_order("an order has 1 to 100 lines"),
            unknown_sku(0),
            key_reused(),
        ],
        Some("listOrders") => vec![bad_query("limit is 1 to 100")],
        Some("readOrder" | "cancelOrder") => vec![no_such_order()],
        _ => vec![],
    };
    // Every route needs the database, and has limits.
    let unavailable = Problem::from_status(StatusCode::SERVICE_UNAVAILABLE);
    problems.extend([Problem::contended(), Problem::internal_error(), unavailable, timed_out()]);
    let mut by_status: BTreeMap<u16, Vec<Problem>> = BTreeMap::new();
    for problem in problems {
        by_status.entry(problem.status).or_default().push(problem);
    }
    let answers =
        by_status.into_iter().map(|(status, all)| (status.to_string(), answer(status, &all).into()));
    operation.responses.responses.extend(answers);
}

fn answer(status: u16, problems: &[Problem]) -> Response {
    let titles: Vec<_> =
        problems.iter().map(|problem| format!("{} (`{}`)", problem.title, problem.kind)).collect();
    let examples = problems.iter().map(|problem| {
        let name = problem.kind.trim_start_matches(TYPE_PREFIX);
        (name, ExampleBuilder::new().summary(problem.title).value(serde_json::to_value(problem).ok()))
    });
    let content =
        Content::builder().schema(Some(Ref::from_schema_name("Problem"))).examples_from_iter(examples);
    let mut response = ResponseBuilder::new()
        .description(format!("{}.", titles.join("; ")))
        .content("application/problem+json", content.build());
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
        let mut header = Header::new(seconds);
        header.description = Some("How long to wait before a retry, in seconds.".into());
        header.example =
            RETRY_AFTER.to_str().ok().and_then(|text| text.parse::<u32>().ok()).map(|one| json!(one));
        response = response.header("Retry-After", header);
    }
    response.build()
}
