use std::time::Duration;

use anyhow::{Result, ensure};

use crate::shop::Shop;

/// Two hundred orders a second, for twenty seconds, or as long as `BOARD_LOAD` says in seconds.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn page_does_not_grow_under_load() -> Result<()> {
    let seconds: u64 = std::env::var("BOARD_LOAD").map_or(Ok(20), |text| text.parse())?;
    let (shop, browser) = Shop::with_browser().await?;
    let mut load = shop.demo(&["load", "--rate", "200", "--for", &format!("{seconds}s")]).spawn()?;
    browser
        .until("the plots to be full of data", "document.querySelectorAll('svg.plot').length === 3")
        .await?;
    let elements = "return document.querySelectorAll('*').length";
    let before = browser.run(elements).await?;
    ensure!(load.wait().await?.success(), "the load failed");
    let after = browser.run(elements).await?;
    ensure!(before == after, "the page has grown from {before} to {after} elements");
    browser
        .until_within(
            "the line on top",
            "document.querySelector('#reconciliation.holds')",
            Duration::from_secs(120),
        )
        .await
}
