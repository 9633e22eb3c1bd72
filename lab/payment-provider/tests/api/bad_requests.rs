//! Every invalid request gets a 4xx problem with a stable type, and writes no row.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Provider, charge, kind};

/// A name, a body, and its expected answer: the status, and the last part of the problem's type.
struct Case(&'static str, Vec<u8>, u16, &'static str);

fn case(name: &'static str, body: impl Into<Vec<u8>>, status: u16, kind: &'static str) -> Case {
    Case(name, body.into(), status, kind)
}

/// A charge with a field added or replaced.
fn with(field: &str, value: Value) -> Vec<u8> {
    let mut body = charge();
    body[field] = value;
    body.to_string().into()
}

fn without(field: &str) -> Vec<u8> {
    let mut body = charge();
    body.as_object_mut().unwrap().remove(field);
    body.to_string().into()
}

/// A charge with this text as its amount; it need not be JSON.
fn amount(text: &str) -> Vec<u8> {
    charge().to_string().replace("2500", text).into()
}

fn bad_bodies() -> Vec<Case> {
    let good = charge().to_string();
    let (malformed, invalid) = ("malformed-json", "invalid-request");
    vec![
        case("empty", "", 400, malformed),
        case("not JSON", "hello", 400, malformed),
        case("truncated", &good[..good.len() - 3], 400, malformed),
        case("two documents", format!("{good}{good}"), 400, malformed),
        case("invalid UTF-8", [b"{\"reference\":\"\xff\"}".as_slice()].concat(), 400, malformed),
        case("an array", "[]", 422, invalid),
        case("null", "null", 422, invalid),
        case("no fields", "{}", 422, invalid),
        case("unknown field", with("status", json!("captured")), 422, invalid),
        case("the same field twice", good.replacen('{', r#"{"amount":1,"#, 1), 422, invalid),
        case("no reference", without("reference"), 422, invalid),
        case("no customer", without("customerId"), 422, invalid),
        case("no amount", without("amount"), 422, invalid),
        case("no currency", without("currency"), 422, invalid),
        case("reference is the nil UUID", with("reference", json!(Uuid::nil())), 422, invalid),
        case("customer is the nil UUID", with("customerId", json!(Uuid::nil())), 422, invalid),
        case("reference is no UUID", with("reference", json!("42")), 422, invalid),
        case("customer is null", with("customerId", Value::Null), 422, invalid),
        case("amount 0", amount("0"), 422, invalid),
        case("negative amount", amount("-1"), 422, invalid),
        case("fractional amount", amount("1.5"), 422, invalid),
        case("amount 2^63", amount("9223372036854775808"), 422, invalid),
        case("amount is text", amount("\"2500\""), 422, invalid),
        case("amount is NaN", amount("NaN"), 400, malformed),
        case("another currency", with("currency", json!("USD")), 422, invalid),
        case("currency in small letters", with("currency", json!("eur")), 422, invalid),
        case("16 KiB + 1", format!("{good}{}", " ".repeat(16 * 1024 + 1 - good.len())), 413, "too-large"),
    ]
}

#[tokio::test]
async fn every_invalid_body_gets_a_problem_and_writes_nothing() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (unknown, nil) = (Uuid::new_v4(), Uuid::nil());
    let bad_refunds = vec![
        case("refund: no fields", "{}", 422, "invalid-request"),
        case("refund: no amount", json!({ "charge": unknown }).to_string(), 422, "invalid-request"),
        case(
            "refund: amount 0",
            json!({ "charge": unknown, "amount": 0 }).to_string(),
            422,
            "invalid-request",
        ),
        case(
            "refund: negative",
            json!({ "charge": unknown, "amount": -1 }).to_string(),
            422,
            "invalid-request",
        ),
        case(
            "refund: unknown field",
            json!({ "charge": unknown, "amount": 1, "currency": "EUR" }).to_string(),
            422,
            "invalid-request",
        ),
        case(
            "refund: no such charge",
            json!({ "charge": nil, "amount": 1 }).to_string(),
            404,
            "no-such-charge",
        ),
    ];
    for (path, cases) in [("/charges", bad_bodies()), ("/refunds", bad_refunds)] {
        for Case(name, body, status, expected) in cases {
            let request = provider
                .client
                .post(format!("{}{path}", provider.url))
                .header("idempotency-key", name.replace(' ', "-"));
            let response = request.header("content-type", "application/json").body(body).send().await?;
            assert_eq!(response.status(), status, "{name}: {}", response.text().await?);
            assert_eq!(response.headers()["content-type"], "application/problem+json", "{name}");
            let problem: Value = response.json().await?;
            assert_eq!((kind(&problem), &problem["status"]), (expected, &status.into()), "{name}");
            assert!(problem.to_string().len() < 1000, "{name}: the problem grows with the request");
        }
    }
    assert_eq!(provider.rows().await?, (0, 0, 0));
    // The same process accepts a valid one.
    assert_eq!(provider.charge(None, &charge()).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn invalid_key_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let bad: [&[u8]; 5] = [b"", &[b'x'; 256], b"a b", "k\u{e4}se".as_bytes(), b"\xff\xfe"];
    for key in bad {
        let request = provider.request("/charges", None, &charge()).header("idempotency-key", key);
        let response = request.send().await?;
        assert_eq!(response.status(), 400, "{key:?}");
        assert_eq!(kind(&response.json().await?), "bad-key", "{key:?}");
    }
    let twice = provider.request("/charges", Some("a"), &charge()).header("idempotency-key", "a");
    assert_eq!(twice.send().await?.status(), 400);
    assert_eq!(provider.rows().await?, (0, 0, 0));
    let longest = "x".repeat(255);
    assert_eq!(provider.charge(Some(&longest), &charge()).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn invalid_methods_paths_types_and_queries_get_problems() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let (client, url) = (&provider.client, &provider.url);
    let plain = client.post(format!("{url}/charges")).body(charge().to_string());
    let cases = [
        ("no content type", plain, 415, "unsupported-media-type"),
        ("unsupported method", client.delete(format!("{url}/charges")), 405, "method-not-allowed"),
        ("unsupported method on faults", client.post(format!("{url}/faults")), 405, "method-not-allowed"),
        ("unknown path", client.get(format!("{url}/charge")), 404, "not-found"),
        ("no reference", client.get(format!("{url}/charges")), 400, "bad-query"),
        ("bad reference", client.get(format!("{url}/charges?reference=42")), 400, "bad-query"),
        ("unknown parameter", client.get(format!("{url}/charges?customer=42")), 400, "bad-query"),
    ];
    for (name, request, status, expected) in cases {
        let response = request.send().await?;
        assert_eq!(response.status(), status, "{name}");
        assert_eq!(response.headers().contains_key("allow"), status == 405, "{name}");
        assert_eq!(kind(&response.json().await?), expected, "{name}");
    }
    assert_eq!(provider.rows().await?, (0, 0, 0));
    Ok(())
}
