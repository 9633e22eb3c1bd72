//! Every answer is as the OpenAPI document describes it. [`Orders::ask`] checks the answers that the tests of this folder
//! get: route, status, content type, body and headers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use futures_util::future::select;
use jsonschema::Validator;
use reqwest::{Method, RequestBuilder, Url, header::HeaderMap};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Orders, order};

/// The document, with one change: fields that it does not name are not allowed. The served one lets fields be added.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = serde_json::to_value(orders::api::openapi()).unwrap();
    for schema in document["components"]["schemas"].as_object_mut().unwrap().values_mut() {
        if schema.get("properties").is_some() {
            schema["additionalProperties"] = false.into();
        }
    }
    document
});

/// A validator for a schema that refers to other schemas of the document.
fn validator(schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = DOCUMENT["components"].clone();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
}

/// The answer to a request. A text body is a JSON string here.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Orders {
    /// Sends a request, and checks the answer against the document.
    pub(crate) async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Answer> {
        let request = request.build()?;
        let (method, url) = (request.method().clone(), request.url().clone());
        let response = self.client.execute(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let is_json = headers["content-type"].to_str()?.ends_with("json");
        let body = if is_json { serde_json::from_str(&text)? } else { text.into() };
        let answer = Answer { status, headers, body };
        check_answer(&method, &url, &answer);
        Ok(answer)
    }
}

/// The document's route for a path.
fn route(url: &Url) -> Option<(&'static str, &'static Value)> {
    let requested: Vec<_> = url.path().split('/').collect();
    let matches = |template: &str| {
        let parts: Vec<_> = template.split('/').collect();
        parts.len() == requested.len()
            && parts.iter().zip(&requested).all(|(part, segment)| part.starts_with('{') || part == segment)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().find(|(template, _)| matches(template)).map(|(template, path)| (template.as_str(), path))
}

/// Checks the answer for a path or a method that the document does not list: its introduction describes it.
fn check_unlisted(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status);
    assert_eq!(answer.body["type"], format!("urn:shop:problem:{kind}"));
    let problem = validator(&json!({ "$ref": "#/components/schemas/Problem" }));
    assert!(problem.is_valid(&answer.body), "{}", answer.body);
}

fn check_answer(method: &Method, url: &Url, answer: &Answer) {
    let Some((template, path)) = route(url) else { return check_unlisted(answer, 404, "not-found") };
    let Some(operation) = path.get(method.as_str().to_lowercase()) else {
        return check_unlisted(answer, 405, "method-not-allowed");
    };
    let Answer { status, headers, body } = answer;
    let exchange = format!("{method} {template} was answered with {status} {body}");
    let response = &operation["responses"][status.to_string()];
    assert!(response.is_object(), "{exchange}, which is not documented");

    let content_type = headers["content-type"].to_str().unwrap();
    let content = &response["content"][content_type];
    assert!(content.is_object(), "{exchange}, as {content_type}, which is not documented");
    if let Err(error) = validator(&content["schema"]).validate(body) {
        panic!("{exchange}: {error} at {:?}", error.instance_path().to_string());
    }
    // The document has an example of each type of problem.
    if content_type == "application/problem+json" {
        let kind = body["type"].as_str().unwrap().trim_start_matches("urn:shop:problem:");
        assert!(content["examples"].get(kind).is_some(), "{exchange}, a type that is not documented");
    }
    let documented: BTreeSet<_> =
        response["headers"].as_object().into_iter().flatten().map(|(name, _)| name.to_lowercase()).collect();
    // Headers of HTTP itself, which the document does not list.
    let ordinary = ["content-type", "content-length", "date"];
    let sent: BTreeSet<_> = headers
        .keys()
        .map(|name| name.to_string())
        .filter(|name| !ordinary.contains(&name.as_str()))
        .collect();
    let new: Vec<_> = sent.difference(&documented).collect();
    assert!(new.is_empty(), "{exchange}, with {new:?}, which are not documented");
    let absent: Vec<_> = documented.difference(&sent).filter(|name| *name != "idempotent-replayed").collect();
    assert!(absent.is_empty(), "{exchange}, without {absent:?}");
}

/// Statuses that need a fault of the service, or a longer wait than a test should take.
const UNTESTED_STATUSES: [u16; 2] = [500, 504];

#[tokio::test]
async fn every_documented_status_occurs() -> anyhow::Result<()> {
    // One request at a time, so that a second concurrent one is refused.
    let orders = Orders::start_with(&[("ORDERS_MAX_REQUESTS", "1")]).await?;
    let url = |path: &str| format!("{}{path}", orders.url);
    let (get, post) = (|path: &str| orders.client.get(url(path)), |path: &str| orders.client.post(url(path)));

    // The document's example of an order is accepted unchanged.
    let placing = &DOCUMENT["paths"]["/orders"]["post"];
    let example = &placing["requestBody"]["content"]["application/json"]["example"];
    let key = placing["parameters"][0]["example"].as_str().unwrap();
    let example_request = || post("/orders").header("idempotency-key", key).json(example);
    let first = orders.ask(example_request()).await?;
    let repeated = orders.ask(example_request()).await?;
    assert_eq!((first.status, repeated.status, &first.body), (201, 201, &repeated.body));
    assert!(!first.headers.contains_key("idempotent-replayed"));
    assert_eq!(repeated.headers["idempotent-replayed"], "true");
    let id = first.body["id"].as_str().unwrap();
    let (one, cancellation) = (format!("/orders/{id}"), format!("/orders/{id}/cancellation"));
    let (unknown, other_order) = (Uuid::nil(), order());

    let mut seen: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    seen.entry("POST /orders".into()).or_default().insert(first.status);
    let requests = [
        ("POST /orders", post("/orders").header("idempotency-key", key).json(&other_order)),
        ("POST /orders", post("/orders").header("idempotency-key", "").json(example)),
        ("POST /orders", post("/orders").body("{}")),
        ("POST /orders", post("/orders").json(&json!({ "lines": "x".repeat(64 * 1024) }))),
        ("GET /orders", get("/orders?limit=1")),
        ("GET /orders", get("/orders?limit=0")),
        ("GET /orders/{id}", get(&one)),
        ("GET /orders/{id}", get(&format!("/orders/{unknown}"))),
        ("POST /orders/{id}/cancellation", post(&format!("/orders/{unknown}/cancellation"))),
        ("GET /products", get("/products")),
        ("GET /livez", get("/livez")),
        ("GET /readyz", get("/readyz")),
        ("GET /metrics", get("/metrics")),
    ];
    for (route, request) in requests {
        seen.entry(route.into()).or_default().insert(orders.ask(request).await?.status);
    }

    // While another session locks the tables, a request waits for two seconds, and a second one is over the limit.
    let mut database = PgConnection::connect(&orders.database.url("orders")).await?;
    let mut lock = database.begin().await?;
    sqlx::query("lock table orders, idempotency_keys, products in access exclusive mode")
        .execute(&mut *lock)
        .await?;
    let waits = [
        ("POST /orders", example_request()),
        ("GET /orders", get("/orders")),
        ("GET /orders/{id}", get(&one)),
        ("POST /orders/{id}/cancellation", post(&cancellation)),
        ("GET /products", get("/products")),
    ];
    for (route, request) in waits {
        let ask = || Box::pin(orders.ask(request.try_clone().unwrap()));
        let (refused, waiting) = select(ask(), ask()).await.factor_first();
        assert_eq!(refused?.status, 503, "{route}: one request must wait, and the other is refused at once");
        // The documents are outside the limit.
        for path in ["/openapi.json", "/asyncapi.json", "/docs/"] {
            assert_eq!(get(path).send().await?.status(), 200, "{path}");
        }
        seen.entry(route.into()).or_default().extend([503, waiting.await?.status]);
    }
    lock.rollback().await?;
    let cancelled = orders.ask(post(&cancellation)).await?;
    seen.entry("POST /orders/{id}/cancellation".into()).or_default().insert(cancelled.status);
    let (_, found) = orders.get(&one).await?;
    assert_eq!((&found["status"], &found["cause"]), (&json!("cancelled"), &json!("customer")));

    // `bad_requests.rs` sends a body that never comes.
    seen.entry("POST /orders".into()).or_default().insert(408);
    // A service without its database is not ready: `lab/demo/tests/system` tests that.
    seen.entry("GET /readyz".into()).or_default().insert(503);
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let documented = operation["responses"].as_object().unwrap().keys();
            let documented: BTreeSet<u16> = documented.map(|status| status.parse().unwrap()).collect();
            let seen = seen.remove(&format!("{} {path}", method.to_uppercase())).unwrap_or_default();
            let missing: Vec<_> =
                documented.difference(&seen).filter(|status| !UNTESTED_STATUSES.contains(status)).collect();
            assert!(
                missing.is_empty(),
                "{method} {path} never answered with {missing:?}, which are documented"
            );
        }
    }
    assert!(seen.is_empty(), "not in the document: {seen:?}");
    Ok(())
}

#[tokio::test]
async fn documented_limits_are_those_that_are_checked() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let limit = &DOCUMENT["paths"]["/orders"]["get"]["parameters"][0]["schema"];
    let (least, most) = (limit["minimum"].as_u64().unwrap(), limit["maximum"].as_u64().unwrap());
    for (limit, status) in [(least - 1, 400), (least, 200), (most, 200), (most + 1, 400)] {
        assert_eq!(orders.get(&format!("/orders?limit={limit}")).await?.0, status, "limit={limit}");
    }
    let schemas = &DOCUMENT["components"]["schemas"];
    assert_eq!(schemas["OrderPage"]["properties"]["orders"]["maxItems"], most);
    let lines = &schemas["OrderRequest"]["properties"]["lines"];
    let quantity = &schemas["RequestedLine"]["properties"]["quantity"];
    let bounds = |schema: &Value, least: &str, most: &str| [schema[least].as_u64(), schema[most].as_u64()];
    let [Some(fewest), Some(most)] = bounds(lines, "minItems", "maxItems") else { panic!("{lines}") };
    // The products do not exist: that is found out after the limits were checked.
    for (count, kind) in [
        (fewest - 1, "invalid-order"),
        (fewest, "unknown-sku"),
        (most, "unknown-sku"),
        (most + 1, "invalid-order"),
    ] {
        let lines = vec![json!({ "sku": "COFFEE", "quantity": 1 }); count.try_into()?];
        let (_, problem) = orders.post(&json!({ "customerId": Uuid::new_v4(), "lines": lines })).await?;
        assert_eq!(problem["type"], format!("urn:shop:problem:{kind}"), "{count} lines");
    }
    let [Some(least), Some(most)] = bounds(quantity, "minimum", "maximum") else { panic!("{quantity}") };
    for (quantity, status) in [(least - 1, 422), (least, 201), (most, 201), (most + 1, 422)] {
        let line = json!({ "sku": "TEA-001", "quantity": quantity });
        let order = json!({ "customerId": Uuid::new_v4(), "lines": [line] });
        assert_eq!(orders.post(&order).await?.0, status, "quantity {quantity}");
    }
    // One order more than a page without a limit has.
    let default = limit["default"].as_u64().unwrap();
    for _ in 2..=default {
        orders.post(&order()).await?;
    }
    assert_eq!(orders.get("/orders").await?.1["orders"].as_array().unwrap().len() as u64, default);
    Ok(())
}

#[test]
fn every_example_matches_its_schema() {
    let mut examples = 0;
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let bodies =
                operation["responses"].as_object().unwrap().values().chain(operation.get("requestBody"));
            for content in bodies.flat_map(|body| body["content"].as_object().unwrap().values()) {
                let named = content["examples"].as_object().into_iter().flatten();
                let all = named.map(|(_, example)| &example["value"]).chain(content.get("example"));
                for example in all {
                    assert!(validator(&content["schema"]).is_valid(example), "{method} {path}: {example}");
                    examples += 1;
                }
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let Some(example) = parameter.get("example") else { continue };
                assert!(validator(&parameter["schema"]).is_valid(example), "{method} {path}: {example}");
                examples += 1;
            }
        }
    }
    assert!(examples > 10, "only {examples} were checked");
}
