//! Every invalid request gets a 4xx problem with a stable type, and writes no row.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Provider, charge, kind};

/// A charge with a field replaced.
fn with(field: &str, value: Value) -> Value {
    let mut body = charge();
    body[field] = value;
    body
}

#[tokio::test]
async fn every_invalid_body_gets_a_problem_and_writes_nothing() -> anyhow::Result<()> {
    let provider = Provider::start().await?;
    let cases = [
        ("/charges", json!({}), 422, "invalid-request"),
        ("/charges", with("status", json!("captured")), 422, "invalid-request"),
        ("/charges", with("reference", json!(Uuid::nil())), 422, "invalid-request"),
        ("/charges", with("customerId", json!(Uuid::nil())), 422, "invalid-request"),
        ("/charges", with("amount", json!(0)), 422, "invalid-request"),
        ("/charges", with("amount", json!(1.5)), 422, "invalid-request"),
        ("/charges", with("amount", json!(9_223_372_036_854_775_808_u64)), 422, "invalid-request"),
        ("/charges", with("currency", json!("USD")), 422, "invalid-request"),
        ("/refunds", json!({ "charge": Uuid::new_v4() }), 422, "invalid-request"),
        ("/refunds", json!({ "charge": Uuid::new_v4(), "amount": -1 }), 422, "invalid-request"),
        ("/refunds", json!({ "charge": Uuid::new_v4(), "amount": 1 }), 404, "no-such-charge"),
    ];
    for (path, body, status, expected) in cases {
        let response = provider.request(path, Some("k"), &body).send().await?;
        assert_eq!(response.status(), status, "{body}");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{body}");
        let problem: Value = response.json().await?;
        assert_eq!((kind(&problem), &problem["status"]), (expected, &status.into()), "{body}");
    }
    assert_eq!(provider.rows().await?, (0, 0, 0));
    // Under the same key, which no refused request has used up.
    assert_eq!(provider.charge(Some("k"), &charge()).await?.0, 201);
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
