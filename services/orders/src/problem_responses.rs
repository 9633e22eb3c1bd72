//! The problems that each route can answer with, for the OpenAPI document.
//!
//! They are made by the same constructors that the handlers use. `tests/api/openapi_conformance.rs` checks from outside that
//! no others occur.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::json;
use utoipa::{
    IntoResponses,
    openapi::{
        Content, Header, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type, example::ExampleBuilder,
    },
};

use service::{
    body::slow_body,
    problem::{Problem, RETRY_AFTER, TYPE_PREFIX},
};

use crate::{order_request::MAX_LINES, problems};

/// `POST /orders`.
pub(crate) struct PlaceOrder;

/// `GET /orders`.
pub(crate) struct ListOrders;

/// The routes that name one order.
pub(crate) struct OneOrder;

/// `GET /products`.
pub(crate) struct ListProducts;

impl IntoResponses for PlaceOrder {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([
            Problem::malformed_json(
                "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0",
            ),
            Problem::unreadable_body("Failed to buffer the request body"),
            problems::bad_key(),
            problems::key_in_use(),
            Problem::too_large(),
            slow_body(),
            Problem::unsupported_media_type("Content-Type is not application/json"),
            problems::invalid_order(format!("an order has 1 to {MAX_LINES} lines")),
            problems::unknown_sku(0),
            problems::key_reused(),
        ])
    }
}

impl IntoResponses for ListOrders {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([problems::bad_query("limit is 1 to 100")])
    }
}

impl IntoResponses for OneOrder {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([problems::no_such_order()])
    }
}

impl IntoResponses for ListProducts {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([])
    }
}

/// The problems of every route: it needs the database, and has limits.
fn of_any_route() -> [Problem; 4] {
    [Problem::contended(), Problem::internal_error(), problems::starting(), problems::timed_out()]
}

/// One answer for each status, with an example for each type of problem.
fn answers<const N: usize>(of_this_route: [Problem; N]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<Problem>> = BTreeMap::new();
    for problem in of_this_route.into_iter().chain(of_any_route()) {
        by_status.entry(problem.status).or_default().push(problem);
    }
    by_status
        .into_iter()
        .map(|(status, problems)| (status.to_string(), answer(status, &problems).into()))
        .collect()
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
