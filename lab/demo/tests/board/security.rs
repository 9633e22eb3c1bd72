use anyhow::{Result, ensure};
use serde_json::json;

use crate::shop::Shop;

/// What a page from elsewhere could try.
#[tokio::test]
async fn board_obeys_its_own_page_only() -> Result<()> {
    let shop = Shop::start().await?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let page = client.get(&shop.board).send().await?;
    let policy = page.headers()["content-security-policy"].to_str()?.to_owned();
    ensure!(policy.starts_with("default-src 'self'"), "{policy}");
    let page = page.text().await?;
    let token = page.split("board-token\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    let order = |host: &str, origin: &str, token: &str, content_type: &str| {
        let request =
            client.post(format!("{}/orders", shop.board)).header("host", host).header("origin", origin);
        request.header("x-board-token", token).header("content-type", content_type).body("{}").send()
    };
    let own = shop.board.trim_start_matches("http://").trim_end_matches('/');
    let origin = format!("http://{own}");
    for (host, from, with, kind, expected) in [
        ("evil.example", origin.as_str(), token, "application/json", 421),
        (own, "http://evil.example", token, "application/json", 403),
        (own, "", token, "application/json", 403),
        (own, &origin, "another token", "application/json", 403),
        (own, &origin, token, "text/plain", 415),
        (own, &origin, token, "application/json", 200),
    ] {
        let status = order(host, from, with, kind).await?.status();
        ensure!(status == expected, "{host} {from} {with} {kind} was answered with {status}");
    }
    let rebound = client.get(&shop.board).header("host", "evil.example").send().await?;
    ensure!(rebound.status() == 421, "{}", rebound.status());
    for (path, site, expected) in [
        ("recording", "cross-site", 403),
        ("failed", "same-site", 403),
        ("failed", "same-origin", 200),
        ("", "cross-site", 200),
    ] {
        let request = client.get(format!("{}/{path}", shop.board)).header("sec-fetch-site", site);
        let status = request.send().await?.status();
        ensure!(status == expected, "/{path} for a page of {site} was answered with {status}");
    }
    // Seventeen streams.
    let mut open = vec![];
    for number in 0..17 {
        let stream = client.get(format!("{}/stream", shop.board)).send().await?;
        let expected = if number < 16 { 200 } else { 503 };
        ensure!(stream.status() == expected, "stream {number} was answered with {}", stream.status());
        open.push(stream);
    }
    drop(open);
    // One fault at a time, and none without an end.
    let fault = async |seconds: u64| {
        let body = json!({
            "target": "provider", "action": "pause", "seconds": seconds,
            "prediction": { "orders": "accepted", "lost": false, "doubled": false },
        });
        let request = client.post(format!("{}/fault", shop.board)).header("origin", &origin);
        anyhow::Ok(request.header("x-board-token", token).json(&body).send().await?.status())
    };
    ensure!(fault(3_600).await? == 400, "a fault of an hour was accepted");
    // Longer than the rest of this test takes.
    ensure!(fault(60).await? == 200, "a fault was refused");
    ensure!(fault(2).await? == 409, "two faults at a time were accepted");
    // What does not exist, or is not running.
    for (path, body, expected) in [
        ("twin", json!({ "variant": "no-such-variant" }), 400),
        ("steps", json!({ "do": "act", "pid": 1, "action": "kill" }), 400),
        ("steps", json!({ "do": "place", "points": ["no-such-point"] }), 400),
        ("load", json!({ "rate": 5, "more": 1 }), 422),
        ("failed/replay", json!({ "ids": ["warehouse/3"], "dryRun": true }), 502),
    ] {
        let request = client.post(format!("{}/{path}", shop.board)).header("origin", &origin);
        let status = request.header("x-board-token", token).json(&body).send().await?.status();
        ensure!(status == expected, "{path} {body} was answered with {status}");
    }
    Ok(())
}
