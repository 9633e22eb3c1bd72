use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{browser::Browser, shop::Shop};

/// Saves what the board has shown so far, and opens the file as a person without a network does.
pub(crate) async fn replays_without_a_server(shop: &Shop, browser: &Browser) -> Result<()> {
    let page = reqwest::Client::builder().no_proxy().build()?;
    let page = page.get(format!("{}/recording", shop.board)).send().await?.error_for_status()?.text().await?;
    ensure!(page.len() < 5 * 1024 * 1024, "{} bytes", page.len());
    for secret in ["adminToken", "token"] {
        let state: serde_json::Value = serde_json::from_slice(&fs::read(shop.home.join("state.json"))?)?;
        let secret = state[secret].as_str().unwrap_or("no secret");
        ensure!(!page.contains(secret), "a recording contains a token");
    }
    let file = shop.home.join("recording.html");
    fs::write(&file, page)?;
    browser.open(&format!("file://{}", file.display())).await?;
    browser
        .until("the recording to play", "Number(document.querySelector('#replay-position').value) > 1")
        .await?;
    // To its end: the order, the fault and its verdict are there.
    browser
        .run(
            "const slider = document.querySelector('#replay-position'); slider.value = slider.max;
             slider.dispatchEvent(new Event('input'))",
        )
        .await?;
    for (what, selector) in [
        ("the order", "#order-line[data-status=confirmed]"),
        ("its steps", "#order-steps li"),
        ("the verdict", "#verdict-line"),
        ("the line on top", "#reconciliation.holds"),
    ] {
        browser.see(what, selector).await?;
    }
    let requests = "return performance.getEntriesByType('resource').length";
    ensure!(browser.run(requests).await? == json!(0), "a recording asks for something");
    Ok(())
}
