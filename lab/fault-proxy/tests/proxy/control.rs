use std::net::SocketAddr;

use fault_proxy::{Effect, Proxy};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

use crate::support::{
    DEADLINE, ROUTE, Setup, connect, echo, expect_bytes, expect_echo_after_the_end, read_to_reset, send,
    within,
};

const FAULTS: &str = "/routes/route/faults";

async fn serve_control(proxy: &mut Proxy) -> SocketAddr {
    proxy.serve_control("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

async fn request(control: SocketAddr, method: Method, path: &str, body: Option<&Value>) -> Response {
    let client = Client::builder().timeout(DEADLINE).build().unwrap();
    let request = client.request(method, format!("http://{control}{path}"));
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    request.send().await.unwrap()
}

async fn put(control: SocketAddr, faults: &Value) -> Value {
    let response = request(control, Method::PUT, FAULTS, Some(faults)).await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

async fn routes(control: SocketAddr) -> Value {
    let response = request(control, Method::GET, "/routes", None).await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

/// Checks that an answer is a problem document with this status, and returns its detail.
async fn problem(response: Response, status: u16, kind: &str) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Value = response.json().await.unwrap();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["type"], format!("urn:fault-proxy:problem:{kind}"));
    assert!(problem["title"].is_string());
    problem["detail"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn routes_are_shown_with_their_stats() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    let mut client = connect(&proxy).await;
    send(&mut client, b"12345").await;
    expect_bytes(&mut client, b"12345").await;
    let shown = routes(control).await;
    let [route] = shown.as_array().unwrap().as_slice() else { panic!("{shown}") };
    assert_eq!(route["name"], ROUTE);
    assert_eq!(route["state"], "normal");
    assert_eq!(route["listen"], proxy.address(ROUTE).unwrap().to_string());
    assert_eq!(route["maxConnections"], 256);
    assert_eq!(route["faults"], json!([]));
    let expected = json!({
        "open": 1, "total": 1, "refused": 0, "connectFailures": 0,
        "bytesToUpstream": 5, "bytesToClient": 5, "resets": 0,
    });
    assert_eq!(route["stats"], expected);
}

#[tokio::test]
async fn every_fault_is_accepted_and_shown_with_its_remaining_time() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    let faults = json!([
        { "fault": "cut", "direction": "toward-client", "lastsMs": 60000 },
        { "fault": "reset-after", "direction": "both", "lastsMs": 60000, "bytes": 10, "times": 2 },
        { "fault": "reset-on-pattern", "direction": "toward-upstream", "lastsMs": 60000, "pattern": "COMMIT",
          "forward": true },
        { "fault": "delay", "direction": "both", "lastsMs": 60000, "delayMs": 50 },
        { "fault": "trickle", "direction": "both", "lastsMs": 60000, "bytesPerSecond": 100 },
        { "fault": "black-hole", "direction": "both", "lastsMs": 600000 },
    ]);
    let answered = put(control, &faults).await;
    let shown = routes(control).await;
    assert_eq!(shown[0]["state"], "faulty");
    for list in [&answered, &shown[0]["faults"]] {
        let list = list.as_array().unwrap();
        assert_eq!(list.len(), 6);
        for (shown, sent) in list.iter().zip(faults.as_array().unwrap()) {
            for (key, value) in sent.as_object().unwrap() {
                assert_eq!(&shown[key], value, "{key}");
            }
            let remaining = shown["remainingMs"].as_u64().unwrap();
            assert!(remaining > 0 && remaining <= sent["lastsMs"].as_u64().unwrap());
        }
        assert_eq!(list[1]["resetsLeft"], 2);
    }
}

#[tokio::test]
async fn a_put_replaces_the_faults_and_is_in_force_when_it_returns() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    let mut client = connect(&proxy).await;
    send(&mut client, b"first").await;
    expect_bytes(&mut client, b"first").await;
    put(control, &json!([{ "fault": "black-hole", "lastsMs": 600000 }])).await;
    let shown = put(control, &json!([{ "fault": "reset-after", "lastsMs": 600000, "bytes": 3 }])).await;
    assert_eq!(shown.as_array().unwrap().len(), 1);
    assert_eq!(shown[0]["direction"], "both");
    send(&mut client, b"second").await;
    read_to_reset(&mut client).await;
}

#[tokio::test]
async fn a_fault_whose_resets_are_used_up_is_not_shown() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    put(control, &json!([{ "fault": "reset-after", "lastsMs": 600000, "bytes": 3, "times": 2 }])).await;
    assert!(within(echo(&proxy, b"message")).await.is_err());
    assert_eq!(routes(control).await[0]["faults"][0]["resetsLeft"], 1);
    assert!(within(echo(&proxy, b"message")).await.is_err());
    assert_eq!(routes(control).await[0]["faults"], json!([]));
    within(echo(&proxy, b"message")).await.unwrap();
}

#[tokio::test]
async fn a_delete_ends_all_faults() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    put(control, &json!([{ "fault": "cut", "lastsMs": 600000 }])).await;
    assert!(within(echo(&proxy, b"message")).await.is_err());
    assert_eq!(request(control, Method::DELETE, FAULTS, None).await.status(), 204);
    within(echo(&proxy, b"message")).await.unwrap();
    assert_eq!(routes(control).await[0]["faults"], json!([]));
}

#[tokio::test]
async fn a_fault_that_has_ended_is_not_shown() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    expect_echo_after_the_end(&proxy, b"message", Effect::Cut).await;
    assert_eq!(routes(control).await[0]["faults"], json!([]));
}

#[tokio::test]
async fn an_unknown_route_is_a_problem() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    let path = "/routes/other/faults";
    let response = request(control, Method::PUT, path, Some(&json!([]))).await;
    let detail = problem(response, 404, "not-found").await;
    assert_eq!(detail, "failed to find route \"other\": no route has this name");
    problem(request(control, Method::DELETE, path, None).await, 404, "not-found").await;
    problem(request(control, Method::GET, "/other", None).await, 404, "not-found").await;
    let response = request(control, Method::POST, "/routes", None).await;
    assert_eq!(response.headers()["allow"], "GET,HEAD");
    problem(response, 405, "method-not-allowed").await;
}

#[tokio::test]
async fn invalid_faults_are_problems_and_change_nothing() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    put(control, &json!([{ "fault": "delay", "lastsMs": 600000, "delayMs": 1 }])).await;
    let invalid = [
        json!({}),
        json!("cut"),
        json!([{}]),
        json!([{ "fault": "other", "lastsMs": 1000 }]),
        json!([{ "fault": "cut" }]),
        json!([{ "fault": "cut", "lastsMs": 0 }]),
        json!([{ "fault": "cut", "lastsMs": 600_001 }]),
        json!([{ "fault": "cut", "lastsMs": -1 }]),
        json!([{ "fault": "cut", "lastsMs": 1000, "direction": "up" }]),
        json!([{ "fault": "cut", "lastsMs": 1000, "bytes": 1 }]),
        json!([{ "fault": "cut", "lastsMs": 1000, "times": 1 }]),
        json!([{ "fault": "reset-after", "lastsMs": 1000, "bytes": 0 }]),
        json!([{ "fault": "reset-after", "lastsMs": 1000, "bytes": 1, "times": 0 }]),
        json!([{ "fault": "reset-on-pattern", "lastsMs": 1000, "pattern": "", "forward": true }]),
        json!([{ "fault": "reset-on-pattern", "lastsMs": 1000, "pattern": "COMMIT" }]),
        json!([{ "fault": "delay", "lastsMs": 1000, "delayMs": 60_001 }]),
        json!([{ "fault": "trickle", "lastsMs": 1000, "bytesPerSecond": 0 }]),
        Value::Array(vec![json!({ "fault": "cut", "lastsMs": 1000 }); 17]),
    ];
    for body in invalid {
        let response = request(control, Method::PUT, FAULTS, Some(&body)).await;
        let detail = problem(response, 422, "invalid-fault").await;
        assert!(!detail.is_empty(), "{body}");
    }
    assert_eq!(routes(control).await[0]["faults"][0]["fault"], "delay");
}

#[tokio::test]
async fn bodies_that_are_no_json_are_problems() {
    let mut proxy = Setup::echo().await;
    let control = serve_control(&mut proxy).await;
    let url = format!("http://{control}{FAULTS}");
    let client = Client::builder().timeout(DEADLINE).build().unwrap();
    let put = |kind: &str, body: String| client.put(&url).header("content-type", kind).body(body).send();
    problem(put("application/json", "[{".to_owned()).await.unwrap(), 400, "malformed").await;
    let media_type = "unsupported-media-type";
    problem(put("text/plain", "[]".to_owned()).await.unwrap(), 415, media_type).await;
    let large = " ".repeat(64 * 1024 + 1);
    problem(put("application/json", large).await.unwrap(), 413, "too-large").await;
}
