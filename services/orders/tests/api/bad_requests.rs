//! Every invalid request gets a 4xx problem with a stable type, and writes no row.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use uuid::Uuid;

use crate::support::{DEADLINE, Orders, order};

/// A name, a body, and its expected answer: the status, and the last part of the problem's type.
struct Case(&'static str, Vec<u8>, u16, &'static str);

fn case(name: &'static str, body: impl Into<Vec<u8>>, status: u16, kind: &'static str) -> Case {
    Case(name, body.into(), status, kind)
}

/// An order with its only line replaced.
fn line(line: Value) -> Vec<u8> {
    with("lines", vec![line].into())
}

/// An order with this text as its quantity; it need not be JSON.
fn quantity(text: &str) -> Vec<u8> {
    let customer = Uuid::new_v4();
    format!(r#"{{"customerId":"{customer}","lines":[{{"sku":"TEA-001","quantity":{text}}}]}}"#).into()
}

/// An order with a field added or replaced.
fn with(field: &str, value: Value) -> Vec<u8> {
    let mut body = order();
    body[field] = value;
    body.to_string().into()
}

fn bad_bodies() -> Vec<Case> {
    let good = order().to_string();
    let customer = Uuid::new_v4();
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let lines = |count: usize| with("lines", vec![json!({ "sku": "TEA-001", "quantity": 1 }); count].into());
    let (malformed, invalid) = ("malformed-json", "invalid-order");
    vec![
        case("empty", "", 400, malformed),
        case("not JSON", "hello", 400, malformed),
        case("truncated", &good[..good.len() - 3], 400, malformed),
        case("trailing garbage", format!("{good} x"), 400, malformed),
        case("two documents", format!("{good}{good}"), 400, malformed),
        case("a byte order mark", format!("\u{feff}{good}"), 400, malformed),
        case("invalid UTF-8", [b"{\"customerId\":\"\xff\"}".as_slice()].concat(), 400, malformed),
        case("UTF-16", good.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>(), 400, malformed),
        case("too deep", format!(r#"{{"customerId":"{customer}","lines":{deep}}}"#), 422, invalid),
        case("an array", "[]", 422, invalid),
        case("null", "null", 422, invalid),
        case("a number", "42", 422, invalid),
        case("no fields", "{}", 422, invalid),
        case(
            "duplicate keys",
            format!(r#"{{"customerId":"{customer}","customerId":"{customer}","lines":[]}}"#),
            422,
            invalid,
        ),
        case("unknown field status", with("status", json!("confirmed")), 422, invalid),
        case("unknown field total", with("total", json!({ "amount": 1, "currency": "EUR" })), 422, invalid),
        case("unknown field id", with("id", json!(customer)), 422, invalid),
        case(
            "a price from the client",
            line(json!({ "sku": "TEA-001", "quantity": 1, "unitPrice": 1 })),
            422,
            invalid,
        ),
        case("customer is null", with("customerId", Value::Null), 422, invalid),
        case("customer is no UUID", with("customerId", json!("42")), 422, invalid),
        case(
            "customer in braces",
            with("customerId", json!(Uuid::new_v4().braced().to_string())),
            422,
            invalid,
        ),
        case("customer as a URN", with("customerId", json!(Uuid::new_v4().urn().to_string())), 422, invalid),
        case(
            "customer without hyphens",
            with("customerId", json!(Uuid::new_v4().simple().to_string())),
            422,
            invalid,
        ),
        case("customer is the nil UUID", with("customerId", json!(Uuid::nil())), 422, invalid),
        case("lines missing", json!({ "customerId": customer }).to_string(), 422, invalid),
        case("lines is null", with("lines", Value::Null), 422, invalid),
        case("no lines", lines(0), 422, invalid),
        case("101 lines", lines(101), 422, invalid),
        case("the same SKU twice", lines(2), 422, invalid),
        case("quantity 0", quantity("0"), 422, invalid),
        case("negative quantity", quantity("-1"), 422, invalid),
        case("fractional quantity", quantity("1.5"), 422, invalid),
        case("quantity 1e3", quantity("1e3"), 422, invalid),
        case("quantity 1001", quantity("1001"), 422, invalid),
        case("quantity 2^31", quantity("2147483648"), 422, invalid),
        case("quantity 2^32 + 1", quantity("4294967297"), 422, invalid),
        case("quantity 2^63", quantity("9223372036854775808"), 422, invalid),
        case("quantity is text", quantity("\"2\""), 422, invalid),
        case("quantity is true", quantity("true"), 422, invalid),
        case("quantity is null", quantity("null"), 422, invalid),
        case("quantity is NaN", quantity("NaN"), 400, malformed),
        case("quantity is missing", line(json!({ "sku": "TEA-001" })), 422, invalid),
        case("unknown SKU", line(json!({ "sku": "COFFEE", "quantity": 1 })), 422, "unknown-sku"),
        case("empty SKU", line(json!({ "sku": "", "quantity": 1 })), 422, "unknown-sku"),
        case("huge SKU", line(json!({ "sku": "x".repeat(60_000), "quantity": 1 })), 422, "unknown-sku"),
        case("a NUL in the SKU", line(json!({ "sku": "TEA\u{0}", "quantity": 1 })), 422, "unknown-sku"),
        case(
            "SQL in the SKU",
            line(json!({ "sku": "'; drop table orders; --", "quantity": 1 })),
            422,
            "unknown-sku",
        ),
        case(
            "control characters",
            line(json!({ "sku": "\r\n\u{1b}[31m", "quantity": 1 })),
            422,
            "unknown-sku",
        ),
        case(
            "a lone surrogate",
            format!(r#"{{"customerId":"{customer}","lines":[{{"sku":"\ud800","quantity":1}}]}}"#),
            400,
            malformed,
        ),
        case("64 KiB + 1", format!("{good}{}", " ".repeat(64 * 1024 + 1 - good.len())), 413, "too-large"),
    ]
}

#[tokio::test]
async fn every_invalid_body_gets_a_problem_and_writes_nothing() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for Case(name, body, status, kind) in bad_bodies() {
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
    let huge = format!("{url}/orders?after={}", "0".repeat(8 * 1024));
    let cases = [
        (
            "curl -d",
            post().header("content-type", "application/x-www-form-urlencoded"),
            415,
            "unsupported-media-type",
        ),
        ("no content type", post(), 415, "unsupported-media-type"),
        (
            "compressed",
            post().header("content-type", "application/json").header("content-encoding", "gzip"),
            415,
            "unsupported-media-type",
        ),
        ("unsupported method", client.delete(format!("{url}/orders")), 405, "method-not-allowed"),
        (
            "unsupported method on one order",
            client.put(format!("{url}/orders/{}", Uuid::new_v4())),
            405,
            "method-not-allowed",
        ),
        ("unknown path", client.get(format!("{url}/order")), 404, "not-found"),
        ("unknown order", client.get(format!("{url}/orders/{}", Uuid::new_v4())), 404, "no-such-order"),
        ("no id", client.get(format!("{url}/orders/42")), 404, "no-such-order"),
        (
            "id in braces",
            client.get(format!("{url}/orders/{}", Uuid::new_v4().braced())),
            404,
            "no-such-order",
        ),
        (
            "id without hyphens",
            client.get(format!("{url}/orders/{}", Uuid::new_v4().simple())),
            404,
            "no-such-order",
        ),
        ("NUL in the path", client.get(format!("{url}/orders/%00")), 404, "no-such-order"),
        ("bad UTF-8 in the path", client.get(format!("{url}/orders/%ff")), 404, "no-such-order"),
        ("limit 0", client.get(format!("{url}/orders?limit=0")), 400, "bad-query"),
        ("limit 101", client.get(format!("{url}/orders?limit=101")), 400, "bad-query"),
        ("limit -1", client.get(format!("{url}/orders?limit=-1")), 400, "bad-query"),
        ("bad cursor", client.get(format!("{url}/orders?after=yesterday")), 400, "bad-query"),
        (
            "cursor in braces",
            client.get(format!("{url}/orders?after={}", Uuid::new_v4().braced())),
            400,
            "bad-query",
        ),
        ("unknown parameter", client.get(format!("{url}/orders?sort=total")), 400, "bad-query"),
        ("huge cursor", client.get(huge), 400, "bad-query"),
    ];
    for (name, request, status, kind) in cases {
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

/// Sends raw bytes, closes the sending half, and returns the answer.
async fn raw(orders: &Orders, request: &[u8]) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
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
    let head = "POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let body = order().to_string();
    let announced_but_absent = format!("{head}content-length: 1000\r\n\r\n");
    let half = format!("{head}content-length: {}\r\n\r\n{}", body.len(), &body[..body.len() / 2]);
    let both_lengths = format!("{head}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    let no_end = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len());
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

/// Sends raw bytes, and returns the answer while the request is still incomplete.
async fn answer_to_incomplete(orders: &Orders, request: &[u8]) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
    stream.write_all(request).await?;
    let mut answer = vec![0; 4096];
    let length = timeout(DEADLINE, stream.read(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[tokio::test]
async fn body_that_is_announced_as_too_large_or_never_comes_gets_a_problem() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let head = "POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    for (length, status, kind) in [("2147483648", 413, "too-large"), ("1000", 408, "slow-body")] {
        let request = format!("{head}content-length: {length}\r\n\r\n");
        let answer = answer_to_incomplete(&orders, request.as_bytes()).await?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{length}: {answer}");
        assert!(answer.contains(&format!("urn:shop:problem:{kind}")), "{length}: {answer}");
    }
    assert_eq!(orders.rows().await?, (0, 0, 0));
    Ok(())
}

/// Reads from a connection until `text` has arrived.
async fn read_until(stream: &mut TcpStream, text: &str) -> anyhow::Result<()> {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains(text) {
        let length = timeout(DEADLINE, stream.read(&mut buffer)).await??;
        anyhow::ensure!(length > 0, "the connection was closed after {seen:?}");
        seen += &String::from_utf8_lossy(&buffer[..length]);
    }
    Ok(())
}

/// A client that reuses its connection would otherwise lose the answer to the request after it.
#[tokio::test]
async fn connection_can_be_used_after_a_body_that_is_too_large() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let head = "POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let body = "x".repeat(200 * 1024);
    let announced = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for request in [announced, chunked] {
        let mut stream = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
        stream.write_all(request.as_bytes()).await?;
        read_until(&mut stream, "urn:shop:problem:too-large").await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        read_until(&mut stream, "alive").await?;
    }
    Ok(())
}

/// Each would otherwise keep its connection for ever.
#[tokio::test]
async fn head_that_never_ends_or_is_too_large_is_given_up() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let mut idle = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
    let mut half = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
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
        let mut stream = TcpStream::connect(orders.url.trim_start_matches("http://")).await?;
        let end = if number < SLOW_BODIES { "content-length: 1000\r\n\r\n{" } else { "" };
        let head = format!("POST /orders HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{end}");
        stream.write_all(head.as_bytes()).await?;
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
    let (_, placed) = orders.post(&order()).await?;
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
