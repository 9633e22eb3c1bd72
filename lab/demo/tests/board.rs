//! The board in a real Chromium, over a system that `demo up` runs. Needs `chromium` and `chromedriver`: `.ci/board` runs it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod browser;

use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use browser::Browser;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::process::{Child, Command};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(120);

/// A system with its board, in a directory of its own. Both end when it is dropped.
struct Shop {
    _up: Child,
    home: PathBuf,
    board: String,
}

impl Shop {
    async fn start() -> Result<Self> {
        let home = std::env::temp_dir().join(format!("board-{}", Uuid::new_v4().simple()));
        fs::create_dir_all(&home)?;
        let with = std::env::var("TESTBED_WITH").unwrap_or_else(|_| "local".to_owned());
        let up = Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(["--with", &with, "--no-install", "up"])
            .env("DEMO_HOME", &home)
            .stdout(Stdio::from(fs::File::create(home.join("up.log"))?))
            .kill_on_drop(true)
            .spawn()?;
        let board = eventually("the board's address", DEADLINE, async || {
            let log = fs::read_to_string(home.join("up.log"))?;
            let address =
                log.lines().find_map(|line| line.trim().strip_prefix("board")?.split_whitespace().next());
            Ok(address.map(str::to_owned))
        })
        .await?;
        Ok(Self { _up: up, home, board })
    }

    /// The address of the database, as its administrator.
    fn admin_url(&self) -> Result<String> {
        let state: Value = serde_json::from_slice(&fs::read(self.home.join("state.json"))?)?;
        Ok(state["adminUrl"].as_str().context("no address")?.to_owned())
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// One system and one browser for all: each takes seconds to start.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn page_shows_an_order_a_kill_and_a_verdict_and_never_lies() -> Result<()> {
    let shop = Shop::start().await?;
    // As on a projector.
    let browser = Browser::start(1280, 720).await?;
    browser.open(&shop.board).await?;
    browser.until("the reconciliation to hold", "document.querySelector('#reconciliation.holds')").await?;

    // By the keyboard alone.
    browser.focus("#place").await?;
    browser.press("\u{e007}").await?;
    browser
        .until("the order to be confirmed", "document.querySelector('#order-line[data-status=confirmed]')")
        .await?;
    browser.until("its steps", "document.querySelectorAll('#order-steps li').length >= 10").await?;

    // A kill is on the page within two seconds, and the backlog grows and drains.
    for (name, value) in [("orders", "accepted"), ("lost", "false"), ("doubled", "true")] {
        browser.click(&format!("input[name={name}][value={value}]")).await?;
    }
    browser.click("#fault button").await?;
    browser
        .until_within("RabbitMQ to be down", "document.querySelector('svg g.down')", Duration::from_secs(2))
        .await?;
    browser.until("the verdict", "document.querySelector('#verdict-line')").await?;
    let verdict = browser.text("#verdict-line").await?;
    ensure!(verdict.starts_with("HELD") && verdict.contains("right 2 of 3"), "{verdict}");

    // `BOARD_SCREENSHOTS=docs/pictures .ci/board` renews the pictures of the docs.
    if let Some(folder) = std::env::var_os("BOARD_SCREENSHOTS").map(PathBuf::from) {
        let folder = testbed::workspace_root().unwrap().join(folder);
        browser.resize(1280, 1200).await?;
        browser.run("scrollTo(0, 0)").await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        browser.screenshot(&folder.join("board-light.png")).await?;
        browser.prefer_dark().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        browser.screenshot(&folder.join("board-dark.png")).await?;
    }

    // Nothing came from elsewhere.
    let foreign = "performance.getEntriesByType('resource').filter(entry => new URL(entry.name).host !== location.host)";
    ensure!(
        browser.run(&format!("return {foreign}.length")).await? == json!(0),
        "a request left the machine"
    );

    // A row that is wrong turns the line red.
    let mut admin = PgConnection::connect(&shop.admin_url()?).await?;
    corrupt(&mut admin).await?;
    browser.until("the line to be red", "document.querySelector('#reconciliation.broken')").await?;
    let sentence = browser.text("#sentence").await?;
    ensure!(sentence.contains("BROKEN"), "{sentence}");
    Ok(())
}

async fn corrupt(admin: &mut PgConnection) -> Result<()> {
    let removed =
        sqlx::query("delete from billing.payments where id in (select id from billing.payments limit 1)");
    ensure!(removed.execute(admin).await?.rows_affected() == 1, "there is no payment");
    Ok(())
}

/// What a page from elsewhere could try.
#[tokio::test]
#[ignore = "needs a running system: .ci/board"]
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
    ensure!(fault(2).await? == 200, "a fault was refused");
    ensure!(fault(2).await? == 409, "two faults at a time were accepted");
    Ok(())
}
