//! Every invalid request gets a 4xx problem with a stable type, and writes no row.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use uuid::Uuid;

use crate::support::{DEADLINE, Orders, order};

/// The expected answer: the status, and the last part of the problem's type.
type Expected = (u16, &'static str);
const MALFORMED: Expected = (400, "malformed-json");
const INVALID: Expected = (422, "invalid-order");
const UNKNOWN_SKU: Expected = (422, "unknown-sku");

/// An order with a field added or replaced.
fn with(field: &str, value: Value) -> String {
    let mut body = order();
    body[field] = value;
    body.to_string()
}

fn bad_bodies() -> Vec<(String, Vec<u8>, Expected)> {
    let good = order().to_string();
    let customer = Uuid::new_v4();
    let order_of = |lines: &str| format!(r#"{{"customerId":"{customer}","lines":{lines}}}"#);
    let lines = |count: usize| with("lines", vec![json!({ "sku": "TEA-001", "quantity": 1 }); count].into());
    let line = |line: Value| with("lines", vec![line].into());
    let mut cases: Vec<(String, Vec<u8>, Expected)> = vec![
        ("invalid UTF-8".into(), [b"{\"customerId\":\"\xff\"}".as_slice()].concat(), MALFORMED),
        ("UTF-16".into(), good.encode_utf16().flat_map(u16::to_le_bytes).collect(), MALFORMED),
    ];
    let mut add = |name: &str, body: String, expected| cases.push((name.into(), body.into(), expected));
    add("empty", String::new(), MALFORMED);
    add("not JSON", "hello".into(), MALFORMED);
    add("truncated", good[..good.len() - 3].into(), MALFORMED);
    add("trailing garbage", format!("{good} x"), MALFORMED);
    add("two documents", format!("{good}{good}"), MALFORMED);
    add("a byte order mark", format!("\u{feff}{good}"), MALFORMED);
    add("a lone surrogate", order_of(r#"[{"sku":"\ud800","quantity":1}]"#), MALFORMED);
    add("too deep", order_of(&format!("{}{}", "[".repeat(129), "]".repeat(129))), INVALID);
    for body in ["[]", "null", "42", "{}"] {
        add(body, body.into(), INVALID);
    }
    add("duplicate keys", good.replacen('{', &format!(r#"{{"customerId":"{customer}","#), 1), INVALID);
    add("unknown field status", with("status", json!("confirmed")), INVALID);
    add("unknown field total", with("total", json!({ "amount": 1, "currency": "EUR" })), INVALID);
    add("unknown field id", with("id", json!(customer)), INVALID);
    add("a client's price", line(json!({ "sku": "TEA-001", "quantity": 1, "unitPrice": 1 })), INVALID);
    add("customer is null", with("customerId", Value::Null), INVALID);
    let (braces, urn) = (customer.braced().to_string(), customer.urn().to_string());
    for text in ["42".into(), braces, urn, customer.simple().to_string(), Uuid::nil().to_string()] {
        add(&format!("customer {text}"), with("customerId", json!(text)), INVALID);
    }
    add("lines missing", json!({ "customerId": customer }).to_string(), INVALID);
    add("lines is null", with("lines", Value::Null), INVALID);
    add("no lines", lines(0), INVALID);
    add("101 lines", lines(101), INVALID);
    add("the same SKU twice", lines(2), INVALID);
    let numbers =
        ["0", "-1", "1.5", "1e3", "1001", "2147483648", "4294967297", "9223372036854775808"].into_iter();
    for text in numbers.chain(["\"2\"", "true", "null"]) {
        let body = order_of(&format!(r#"[{{"sku":"TEA-001","quantity":{text}}}]"#));
        add(&format!("quantity {text}"), body, INVALID);
    }
    add("quantity is NaN", order_of(r#"[{"sku":"TEA-001","quantity":NaN}]"#), MALFORMED);
    add("quantity is missing", line(json!({ "sku": "TEA-001" })), INVALID);
    let huge = "x".repeat(60_000);
    for sku in ["COFFEE", "", &huge, "TEA\u{0}", "'; drop table orders; --", "\r\n\u{1b}[31m"] {
        add(&format!("SKU {sku:.9}"), line(json!({ "sku": sku, "quantity": 1 })), UNKNOWN_SKU);
    }
    add("64 KiB + 1", format!("{good}{}", " ".repeat(64 * 1024 + 1 - good.len())), (413, "too-large"));
    cases
}

#[tokio::test]
async fn every_invalid_body_gets_a_problem_and_writes_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for (name, body, (status, kind)) in bad_bodies() {
        let request =
            orders.client.post(format!("{}/orders", orders.url)).header("content-type", "application/json");
        let answer = orders.ask(request.body(body)).await?;
        let problem = answer.body;
        assert_eq!(answer.status, status, "{name}: {problem}");
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{name}");
        assert_eq!(problem["type"], format!("urn:shop:problem:{kind}"), "{name}: {problem}");
        assert_eq!(problem["status"], status, "{name}");
        assert!(problem.to_string().len() < 1000, "{name}: the problem grows with the request");
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    // The same process accepts a valid one.
    assert_eq!(orders.post(&order()).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn invalid_methods_paths_types_and_queries_get_problems() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let (client, url) = (&orders.client, &orders.url);
    let post = || client.post(format!("{url}/orders")).body(order().to_string());
    let json = || post().header("content-type", "application/json");
    let id = Uuid::new_v4();
    let media_type = (415, "unsupported-media-type");
    let mut cases = vec![
        ("curl -d".into(), post().header("content-type", "application/x-www-form-urlencoded"), media_type),
        ("no content type".into(), post(), media_type),
        ("compressed".into(), json().header("content-encoding", "gzip"), media_type),
        ("DELETE /orders".into(), client.delete(format!("{url}/orders")), (405, "method-not-allowed")),
        ("PUT one order".into(), client.put(format!("{url}/orders/{id}")), (405, "method-not-allowed")),
    ];
    let mut get =
        |path: String, expected| cases.push((path.clone(), client.get(format!("{url}{path}")), expected));
    get("/order".into(), (404, "not-found"));
    let (braces, simple) = (id.braced().to_string(), id.simple().to_string());
    for unknown in [&id.to_string(), "42", &braces, &simple, "%00", "%ff"] {
        get(format!("/orders/{unknown}"), (404, "no-such-order"));
    }
    let (in_braces, huge) = (format!("after={braces}"), format!("after={}", "0".repeat(8 * 1024)));
    for query in ["limit=0", "limit=101", "limit=-1", "after=yesterday", &in_braces, "sort=total", &huge] {
        get(format!("/orders?{query}"), (400, "bad-query"));
    }
    for (name, request, (status, kind)) in cases {
        let answer = orders.ask(request).await?;
        assert_eq!(answer.status, status, "{name}");
        if status == 405 {
            assert!(answer.headers.contains_key("allow"), "{name}: no Allow header");
        }
        let problem = answer.body;
        assert_eq!(problem["type"], format!("urn:shop:problem:{kind}"), "{name}: {problem}");
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}

#[tokio::test]
async fn invalid_trace_headers_never_fail_a_request() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for header in
        ["", "nonsense", "00-00000000000000000000000000000000-0000000000000000-00", &"f".repeat(4000)]
    {
        let request = orders.client.post(format!("{}/orders", orders.url)).json(&order());
        assert_eq!(request.header("traceparent", header).send().await?.status(), 201, "{header:?}");
    }
    Ok(())
}

/// The head of an order, without its end.
const HEAD: &str = "POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

async fn connect(orders: &Orders) -> anyhow::Result<TcpStream> {
    Ok(TcpStream::connect(orders.url.trim_start_matches("http://")).await?)
}

/// Sends raw bytes, closes the sending half, and returns the answer.
async fn raw(orders: &Orders, request: &[u8]) -> anyhow::Result<String> {
    let mut stream = connect(orders).await?;
    stream.write_all(request).await?;
    stream.shutdown().await?;
    let mut answer = String::new();
    // The server may also reset the connection.
    let _ = stream.read_to_string(&mut answer).await;
    Ok(answer)
}

#[tokio::test]
async fn requests_that_end_early_or_declare_a_wrong_length_write_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let body = order().to_string();
    let announced_but_absent = format!("{HEAD}content-length: 1000\r\n\r\n");
    let half = format!("{HEAD}content-length: {}\r\n\r\n{}", body.len(), &body[..body.len() / 2]);
    let both_lengths = format!("{HEAD}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    let no_end = format!("{HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len());
    for request in [announced_but_absent, half, both_lengths, no_end, "GARBAGE\r\n\r\n".into()] {
        let answer = raw(&orders, request.as_bytes()).await?;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{request:?} was answered with {answer:?}"
        );
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}

/// Reads from a connection until `text` has arrived, and returns what has.
async fn read_until(stream: &mut TcpStream, text: &str) -> anyhow::Result<String> {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains(text) {
        let length = timeout(DEADLINE, stream.read(&mut buffer)).await??;
        anyhow::ensure!(length > 0, "the connection was closed after {seen:?}");
        seen += &String::from_utf8_lossy(&buffer[..length]);
    }
    Ok(seen)
}

#[tokio::test]
async fn body_that_is_announced_as_too_large_or_never_comes_gets_a_problem() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for (length, status, kind) in [("2147483648", 413, "too-large"), ("1000", 408, "slow-body")] {
        let mut stream = connect(&orders).await?;
        stream.write_all(format!("{HEAD}content-length: {length}\r\n\r\n").as_bytes()).await?;
        let answer = read_until(&mut stream, &format!("urn:shop:problem:{kind}")).await?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{length}: {answer}");
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}

/// A client that reuses its connection would otherwise lose the answer to the request after it.
#[tokio::test]
async fn connection_can_be_used_after_a_body_that_is_too_large() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let body = "x".repeat(200 * 1024);
    let announced = format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("{HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for request in [announced, chunked] {
        let mut stream = connect(&orders).await?;
        stream.write_all(request.as_bytes()).await?;
        read_until(&mut stream, "urn:shop:problem:too-large").await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        read_until(&mut stream, "alive").await?;
    }
    Ok(())
}

/// Each would otherwise keep its connection forever.
#[tokio::test]
async fn head_that_never_ends_or_is_too_large_is_given_up() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let mut idle = connect(&orders).await?;
    let mut half = connect(&orders).await?;
    half.write_all(b"POST /orders HTTP/1.1\r\nhost: x\r\n").await?;
    for (name, stream) in [("no request", &mut idle), ("half a head", &mut half)] {
        let mut answer = vec![];
        let ended = timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{name}: the connection is still open");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{name}: {answer}");
    }
    let huge = "x".repeat(20 * 1024);
    for (request, status) in [
        (format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-huge: {huge}\r\n\r\n"), "431"),
        (format!("GET /{huge} HTTP/1.1\r\nhost: x\r\n\r\n"), "4"),
    ] {
        let answer = raw(&orders, request.as_bytes()).await?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:.40}: {answer:.100}");
    }
    Ok(())
}

/// More slow bodies than the service handles requests at a time, and some slow heads.
#[tokio::test]
async fn clients_that_send_slowly_take_no_places_from_others() -> anyhow::Result<()> {
    const SLOW_BODIES: usize = 600;
    const SLOW_HEADS: usize = 100;
    let orders = Orders::start().await?;
    let mut slow = vec![];
    for number in 0..SLOW_BODIES + SLOW_HEADS {
        let mut stream = connect(&orders).await?;
        let end = if number < SLOW_BODIES { "content-length: 1000\r\n\r\n{" } else { "" };
        stream.write_all(format!("{HEAD}{end}").as_bytes()).await?;
        slow.push(stream);
    }
    for _ in 0..50 {
        let response = orders.client.post(format!("{}/orders", orders.url)).json(&order()).send().await?;
        assert_eq!(response.status(), 201);
    }
    drop(slow);
    assert_eq!(orders.rows().await?.0, 50);
    Ok(())
}

/// A cancellation has no body, so a browser asks nobody before it sends one for any page.
#[tokio::test]
async fn pages_of_other_sites_can_change_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let placed = orders.place().await?;
    let path = format!("{}/orders/{}", orders.url, placed["id"].as_str().unwrap());
    let own = orders.url.as_str();
    let rebound = "shop.example:8080";
    let cancel = |headers: &[(&str, &str)]| {
        let request = orders.client.post(format!("{path}/cancellation"));
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    };
    for headers in [
        &[("sec-fetch-site", "cross-site")][..],
        // Another port of the same host.
        &[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:1")],
        &[("origin", "https://elsewhere.example")],
        &[("origin", "null")],
        // DNS rebinding: browsers send no `Sec-Fetch-Site` over http.
        &[("host", rebound), ("origin", "http://shop.example:8080")],
    ] {
        let answer = cancel(headers).send().await?;
        assert_eq!(answer.status(), 403, "{headers:?}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{headers:?}");
        let answer = headers.iter().fold(orders.client.get(&path), |request, (n, v)| request.header(*n, *v));
        let body: Value = answer.send().await?.json().await?;
        assert_eq!(body["status"], "pending", "{headers:?}");
    }
    for headers in [
        &[][..],
        &[("host", rebound)],
        &[("origin", own)],
        &[("sec-fetch-site", "same-origin"), ("origin", "https://behind-a-proxy.example")],
        &[("host", rebound), ("origin", "https://shop.example:8080")],
    ] {
        assert_eq!(cancel(headers).send().await?.status(), 200, "{headers:?}");
    }
    Ok(())
}
