//! Which problems each route can be answered with, for its document.
//!
//! What the document shows are the problems themselves, made by the constructors that the handlers use. That no other ones
//! come is tested from outside, in `tests/api/promises.rs`.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::json;
use utoipa::{
    IntoResponses,
    openapi::{
        Content, Header, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type, example::ExampleBuilder,
    },
};

use crate::{
    order_request::MOST_LINES,
    problem::{Problem, RETRY_AFTER, TYPE_PREFIX},
};

/// Of `POST /orders`.
pub(crate) struct Placing;

/// Of `GET /orders`.
pub(crate) struct Listing;

/// Of the routes that name one order.
pub(crate) struct OneOrder;

impl IntoResponses for Placing {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([
            Problem::malformed(
                "Failed to parse the request body as JSON: EOF while parsing a value at line 1 column 0",
            ),
            Problem::unreadable("Failed to buffer the request body"),
            Problem::bad_key(),
            Problem::key_in_use(),
            Problem::too_large(),
            Problem::unsupported_media("Content-Type is not application/json"),
            Problem::invalid(format!("an order has 1 to {MOST_LINES} lines")),
            Problem::unknown_sku(0),
            Problem::key_reused(),
        ])
    }
}

impl IntoResponses for Listing {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([Problem::bad_query("limit is 1 to 100")])
    }
}

impl IntoResponses for OneOrder {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        answers([Problem::no_such_order()])
    }
}

/// What any route can be answered with: it stands on a database, and behind limits.
fn of_any_route() -> [Problem; 4] {
    [Problem::contended(), Problem::our_fault(), Problem::starting(), Problem::late()]
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
        header.description = Some("How long to wait before asking again, in seconds.".into());
        header.example =
            RETRY_AFTER.to_str().ok().and_then(|text| text.parse::<u32>().ok()).map(|one| json!(one));
        response = response.header("Retry-After", header);
    }
    response.build()
}
