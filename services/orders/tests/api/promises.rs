//! What is answered is what the document promises. Whatever the tests of this folder ask for through [`Orders::ask`] is held
//! to it: the route, the status, the type, the body and the headers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use futures_util::future::select;
use reqwest::{Method, RequestBuilder, Url, header::HeaderMap};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::jsonschema::{self, Validator};
use uuid::Uuid;

use crate::support::{Orders, order};

/// The document, but closed: a field that it does not name is not allowed. The real one lets fields be added.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = serde_json::to_value(orders::api::openapi()).unwrap();
    for schema in document["components"]["schemas"].as_object_mut().unwrap().values_mut() {
        if schema.get("properties").is_some() {
            schema["additionalProperties"] = false.into();
        }
    }
    document
});

/// For a schema that refers to others of the document.
fn validator(schema: &Value) -> Validator {
    let mut schema = schema.clone();
    schema["components"] = DOCUMENT["components"].clone();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
}

/// What a request was answered with. Text is a JSON string here.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Orders {
    /// Sends a request, and holds the answer to the document.
    pub(crate) async fn ask(&self, request: RequestBuilder) -> anyhow::Result<Answer> {
        let request = request.build()?;
        let (method, url) = (request.method().clone(), request.url().clone());
        let response = self.client.execute(request).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let is_json = headers["content-type"].to_str()?.ends_with("json");
        let body = if is_json { serde_json::from_str(&text)? } else { text.into() };
        let answer = Answer { status, headers, body };
        hold(&method, &url, &answer);
        Ok(answer)
    }
}

/// The route that a path belongs to, as the document has it.
fn route(url: &Url) -> Option<(&'static str, &'static Value)> {
    let asked: Vec<_> = url.path().split('/').collect();
    let fits = |template: &str| {
        let parts: Vec<_> = template.split('/').collect();
        parts.len() == asked.len()
            && parts.iter().zip(&asked).all(|(part, asked)| part.starts_with('{') || part == asked)
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().find(|(template, _)| fits(template)).map(|(template, path)| (template.as_str(), path))
}

/// What the document says besides the routes: of paths that there are not, and methods that they do not have.
fn elsewhere(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status);
    assert_eq!(answer.body["type"], format!("urn:shop:problem:{kind}"));
    let problem = validator(&json!({ "$ref": "#/components/schemas/Problem" }));
    assert!(problem.is_valid(&answer.body), "{}", answer.body);
}

fn hold(method: &Method, url: &Url, answer: &Answer) {
    let Some((template, path)) = route(url) else { return elsewhere(answer, 404, "not-found") };
    let Some(operation) = path.get(method.as_str().to_lowercase()) else {
        return elsewhere(answer, 405, "method-not-allowed");
    };
    let Answer { status, headers, body } = answer;
    let asked = format!("{method} {template} was answered with {status} {body}");
    let promise = &operation["responses"][status.to_string()];
    assert!(promise.is_object(), "{asked}, which is not documented");

    let content_type = headers["content-type"].to_str().unwrap();
    let content = &promise["content"][content_type];
    assert!(content.is_object(), "{asked}, as {content_type}, which is not documented");
    if let Err(error) = validator(&content["schema"]).validate(body) {
        panic!("{asked}: {error} at {:?}", error.instance_path().to_string());
    }
    // Each type of problem stands there with an example.
    if content_type == "application/problem+json" {
        let kind = body["type"].as_str().unwrap().trim_start_matches("urn:shop:problem:");
        assert!(content["examples"].get(kind).is_some(), "{asked}, a type that is not documented");
    }
    let promised: BTreeSet<_> =
        promise["headers"].as_object().into_iter().flatten().map(|(name, _)| name.to_lowercase()).collect();
    // HTTP's own, and those that say nothing about the answer.
    let ordinary = ["content-type", "content-length", "date"];
    let came: BTreeSet<_> = headers
        .keys()
        .map(|name| name.to_string())
        .filter(|name| !ordinary.contains(&name.as_str()))
        .collect();
    let new: Vec<_> = came.difference(&promised).collect();
    assert!(new.is_empty(), "{asked}, with {new:?}, which are not documented");
    let absent: Vec<_> = promised.difference(&came).filter(|name| *name != "idempotent-replayed").collect();
    assert!(absent.is_empty(), "{asked}, without {absent:?}");
}

/// The statuses that take a fault of ours, or more patience than a test has.
const NOT_TO_BE_HAD: [u16; 2] = [500, 504];

#[tokio::test]
async fn every_answer_that_is_promised_can_be_had() -> anyhow::Result<()> {
    // One request at a time, so that a second one is one too many.
    let orders = Orders::start_with(&[("ORDERS_MAX_REQUESTS", "1")]).await?;
    let url = |path: &str| format!("{}{path}", orders.url);
    let (get, post) = (|path: &str| orders.client.get(url(path)), |path: &str| orders.client.post(url(path)));

    // What the document shows is accepted as it stands there.
    let placing = &DOCUMENT["paths"]["/orders"]["post"];
    let example = &placing["requestBody"]["content"]["application/json"]["example"];
    let key = placing["parameters"][0]["example"].as_str().unwrap();
    let shown = || post("/orders").header("idempotency-key", key).json(example);
    let first = orders.ask(shown()).await?;
    let again = orders.ask(shown()).await?;
    assert_eq!((first.status, again.status, &first.body), (201, 201, &again.body));
    assert!(!first.headers.contains_key("idempotent-replayed"));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let id = first.body["id"].as_str().unwrap();
    let (one, cancellation) = (format!("/orders/{id}"), format!("/orders/{id}/cancellation"));
    let (nobody, nothing) = (Uuid::nil(), order());

    let mut seen: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    seen.entry("POST /orders".into()).or_default().insert(first.status);
    let requests = [
        ("POST /orders", post("/orders").header("idempotency-key", key).json(&nothing)),
        ("POST /orders", post("/orders").header("idempotency-key", "").json(example)),
        ("POST /orders", post("/orders").body("{}")),
        ("POST /orders", post("/orders").json(&json!({ "lines": "x".repeat(64 * 1024) }))),
        ("GET /orders", get("/orders?limit=1")),
        ("GET /orders", get("/orders?limit=0")),
        ("GET /orders/{id}", get(&one)),
        ("GET /orders/{id}", get(&format!("/orders/{nobody}"))),
        ("POST /orders/{id}/cancellation", post(&format!("/orders/{nobody}/cancellation"))),
        ("GET /livez", get("/livez")),
        ("GET /readyz", get("/readyz")),
        ("GET /metrics", get("/metrics")),
    ];
    for (route, request) in requests {
        seen.entry(route.into()).or_default().insert(orders.ask(request).await?.status);
    }

    // Somebody else has the orders in hand: whoever wants one waits for two seconds, and meanwhile nobody else is let in.
    let mut database = PgConnection::connect(&orders.database.url("orders")).await?;
    let mut busy = database.begin().await?;
    sqlx::query("lock table orders, idempotency_keys in access exclusive mode").execute(&mut *busy).await?;
    let waits = [
        ("POST /orders", shown()),
        ("GET /orders", get("/orders")),
        ("GET /orders/{id}", get(&one)),
        ("POST /orders/{id}/cancellation", post(&cancellation)),
    ];
    for (route, request) in waits {
        let ask = || Box::pin(orders.ask(request.try_clone().unwrap()));
        let (refused, waiting) = select(ask(), ask()).await.factor_first();
        assert_eq!(
            refused?.status, 503,
            "{route}: one of the two has to wait, and the other is refused at once"
        );
        // The documents are to be had all the same.
        for path in ["/openapi.json", "/asyncapi.json", "/docs/"] {
            assert_eq!(get(path).send().await?.status(), 200, "{path}");
        }
        seen.entry(route.into()).or_default().extend([503, waiting.await?.status]);
    }
    busy.rollback().await?;
    let cancelled = orders.ask(post(&cancellation)).await?;
    seen.entry("POST /orders/{id}/cancellation".into()).or_default().insert(cancelled.status);
    let (_, found) = orders.get(&one).await?;
    assert_eq!((&found["status"], &found["cause"]), (&json!("cancelled"), &json!("customer")));

    // Not ready: that is a service without its database, and `demo/tests/system` has one.
    seen.entry("GET /readyz".into()).or_default().insert(503);
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let promised = operation["responses"].as_object().unwrap().keys();
            let promised: BTreeSet<u16> = promised.map(|status| status.parse().unwrap()).collect();
            let seen = seen.remove(&format!("{} {path}", method.to_uppercase())).unwrap_or_default();
            let missing: Vec<_> =
                promised.difference(&seen).filter(|status| !NOT_TO_BE_HAD.contains(status)).collect();
            assert!(missing.is_empty(), "{method} {path} is said to answer with {missing:?}");
        }
    }
    assert!(seen.is_empty(), "not in the document: {seen:?}");
    Ok(())
}

#[test]
fn every_example_is_what_its_schema_asks_for() {
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
    assert!(examples > 10, "only {examples} were looked at");
}
