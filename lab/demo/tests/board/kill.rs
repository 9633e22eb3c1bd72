use std::{process::Stdio, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::eventually;
use tokio::process::Command;

use crate::shop::{DEADLINE, Shop};

/// It is killed while billing is frozen: billing goes on, orders are confirmed, and the page says that it knows nothing until
/// another board listens.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn a_killed_board_leaves_the_system_as_it_was() -> Result<()> {
    let (shop, browser) = Shop::with_browser().await?;
    for (name, value) in [
        ("target", "billing"),
        ("action", "pause"),
        ("orders", "accepted"),
        ("lost", "false"),
        ("doubled", "false"),
    ] {
        browser.click(&format!("input[name={name}][value={value}]")).await?;
    }
    browser.run("document.querySelector('[name=seconds]').value = 60").await?;
    browser.click("#strike").await?;
    browser.see("billing to be frozen", "svg g.frozen").await?;

    let killed = Command::new("kill").args(["-KILL", &shop.board_pid()?.to_string()]).status().await?;
    ensure!(killed.success(), "the board was not killed");
    browser
        .until("the page to know nothing", "document.querySelectorAll('svg g.unknown').length === 6")
        .await?;
    browser.see("the line to be unknown", "#reconciliation.unknown").await?;

    // Long before the minute is over, an order is charged for and confirmed.
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let orders = format!("{}/orders", shop.address("ordersUrl")?);
    let body = json!({ "customerId": uuid::Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    let order: Value = client.post(&orders).json(&body).send().await?.error_for_status()?.json().await?;
    let order = format!("{orders}/{}", order["id"].as_str().unwrap());
    eventually("the order to be confirmed", Duration::from_secs(30), async || {
        let order: Value = client.get(&order).send().await?.json().await?;
        Ok((order["status"] == "confirmed").then_some(()))
    })
    .await?;

    let address = shop.board.trim_start_matches("http://").replace("localhost", "127.0.0.1");
    let _board =
        shop.demo(&["--with", "local", "board", "--address", &address]).stderr(Stdio::null()).spawn()?;
    browser
        .until_within(
            "the page to be live again",
            "document.querySelectorAll('svg g.up').length === 6",
            DEADLINE,
        )
        .await?;
    browser.see("the reconciliation to hold", "#reconciliation.holds").await?;
    ensure!(browser.text("#connection").await? == "live");
    Ok(())
}
