use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use crate::{browser::Browser, shop::Shop};

/// Linux reports processor time in ticks of 10 ms.
const TICKS_PER_SECOND: f64 = 100.0;

/// Two hundred orders a second, for twenty seconds, or as long as `BOARD_LOAD` says in seconds. What the board costs is
/// printed; a figure of one machine is no assertion. The page must not grow.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn page_does_not_grow_under_load() -> Result<()> {
    let seconds: u64 = std::env::var("BOARD_LOAD").map_or(Ok(20), |text| text.parse())?;
    let shop = Shop::start().await?;
    let browser = Browser::start(1280, 720).await?;
    browser.open(&shop.board).await?;
    browser.until("the reconciliation to hold", "document.querySelector('#reconciliation.holds')").await?;
    let board = shop.board_pid()?;
    let postgres = postmaster(&shop.admin_url()?).await?;
    let mut load = shop.demo(&["load", "--rate", "200", "--for", &format!("{seconds}s")]).spawn()?;
    browser
        .until("the plots to be full of data", "document.querySelectorAll('svg.plot').length === 3")
        .await?;
    let elements = "return document.querySelectorAll('*').length";
    let heap = "gc = window.gc; return performance.memory.usedJSHeapSize / 1e6";
    let before = (browser.run(elements).await?, browser.run(heap).await?);
    let (began, board_before, postgres_before) = (Instant::now(), own(board)?, ended_children(postgres)?);
    ensure!(load.wait().await?.success(), "the load failed");
    let took = began.elapsed().as_secs_f64();
    let share = |spent: f64| spent / TICKS_PER_SECOND / took * 100.0;
    let after = (browser.run(elements).await?, browser.run(heap).await?);
    println!(
        "the board: {:.1} % of a core; PostgreSQL's processes that ended, those of the board among them: {:.1} %; \
         elements {} and then {}; heap {} MB and then {} MB",
        share(own(board)? - board_before),
        share(ended_children(postgres)? - postgres_before),
        before.0,
        after.0,
        before.1,
        after.1,
    );
    ensure!(before.0 == after.0, "the page has grown from {} to {} elements", before.0, after.0);
    browser
        .until_within(
            "the line on top",
            "document.querySelector('#reconciliation.holds')",
            Duration::from_secs(120),
        )
        .await
}

async fn postmaster(admin_url: &str) -> Result<u32> {
    use sqlx::Connection as _;
    let mut admin = sqlx::PgConnection::connect(admin_url).await?;
    let file: String =
        sqlx::query_scalar("select current_setting('data_directory')").fetch_one(&mut admin).await?;
    let pid = fs::read_to_string(format!("{file}/postmaster.pid"))?;
    Ok(pid.lines().next().context("an empty file")?.parse()?)
}

/// The processor time of a process, in ticks.
fn own(pid: u32) -> Result<f64> {
    Ok(fields(pid)?[11..13].iter().sum())
}

/// That of its children that have ended: the board connects anew for each reading.
fn ended_children(pid: u32) -> Result<f64> {
    Ok(fields(pid)?[13..15].iter().sum())
}

/// The numbers behind the process's name and state; what is no number is zero.
fn fields(pid: u32) -> Result<Vec<f64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("no fields")?;
    Ok(rest.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect())
}
