use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{recording, shop::Shop};

/// The events that wait in the outbox of orders.
const PENDING: &str = "Number([...document.querySelectorAll('svg text')].map(text => text.textContent)\
                       .find(text => /^outbox: [0-9,]+ pending/.test(text))?.replace(/[^0-9]/g, '') ?? NaN)";

/// One system and one browser for all: each takes seconds to start.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn page_shows_an_order_a_kill_and_a_verdict_and_never_lies() -> Result<()> {
    let (shop, browser) = Shop::with_browser().await?;

    // By the keyboard alone.
    browser.focus("#place").await?;
    browser.press("\u{e007}").await?;
    browser.see("the order to be confirmed", "#order-line[data-status=confirmed]").await?;
    browser.until("its steps", "document.querySelectorAll('#order-steps li').length >= 10").await?;

    // A kill is on the page within two seconds, and the backlog grows and drains.
    for (name, value) in [("orders", "accepted"), ("lost", "false"), ("doubled", "true")] {
        browser.click(&format!("input[name={name}][value={value}]")).await?;
    }
    browser.click("#strike").await?;
    browser
        .until_within("RabbitMQ to be down", "document.querySelector('svg g.down')", Duration::from_secs(2))
        .await?;
    // As the diagram shows it: the outbox of orders, which nothing empties meanwhile.
    let pending = |condition: &str| format!("({PENDING}) {condition}");
    browser.until("the backlog to grow", &pending("> 100")).await?;
    browser.see("an order that moves", "circle.dot.created").await?;
    browser.take_pictures("board-kill", "header").await?;
    browser.until("the backlog to drain", &pending("=== 0")).await?;
    for moment in ["struck", "detected", "recovered", "drained"] {
        browser.see(moment, &format!("#strip .{moment}[data-state=done]")).await?;
    }
    browser.see("the verdict", "#verdict-line").await?;
    let verdict = browser.text("#verdict-line").await?;
    ensure!(verdict.starts_with("HELD") && verdict.contains("right 2 of 3"), "{verdict}");

    browser
        .until("the count of the end", "document.querySelector('#counts .open dd').textContent === '0'")
        .await?;
    browser.take_pictures("board", "header").await?;

    // Nothing came from elsewhere.
    let foreign = "performance.getEntriesByType('resource').filter(entry => new URL(entry.name).host !== location.host)";
    ensure!(
        browser.run(&format!("return {foreign}.length")).await? == json!(0),
        "a request left the machine"
    );

    // What no consumer can apply: set aside, looked at, and discarded.
    browser.click("#failed-send").await?;
    browser.see("the message to be listed", "#failed-groups .group").await?;
    browser.click("#failed-groups [data-action=show]").await?;
    browser
        .until(
            "its bytes, as text",
            "document.querySelector('#failed-item').textContent.includes('sent-by-the-board')",
        )
        .await?;
    ensure!(browser.run("return document.querySelectorAll('#failed-item *').length").await? == json!(0));
    browser.click("#failed-groups [data-action=dry-run]").await?;
    let line = "document.querySelector('#failed-line').textContent";
    browser.until("what a replay would do", &format!("{line}.startsWith('inventory/1: ')")).await?;
    browser.click("#failed-groups [data-action=discard]").await?;
    browser.until("the list to be empty", "!document.querySelector('#failed-groups .group')").await?;

    recording::replays_without_a_server(&shop, &browser).await?;
    browser.open(&shop.board).await?;

    // A row that is wrong turns the line red.
    let mut admin = PgConnection::connect(&shop.admin_url()?).await?;
    corrupt(&mut admin).await?;
    browser.see("the line to be red", "#reconciliation.broken").await?;
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
