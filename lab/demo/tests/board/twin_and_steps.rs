use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{browser::Browser, shop::Shop};

const ACTIONS: [&str; 3] = ["continue", "freeze", "kill"];

/// What is tried where `BOARD_STEPS=all` does not ask for every crash point: one of each action.
const FEW: [(&str, &str); 3] =
    [("relay-confirmed", "kill"), ("effect-written", "freeze"), ("order-written", "continue")];

/// How long a verdict may take: after a freeze, PostgreSQL first ends the frozen session.
const VERDICT_DEADLINE: Duration = Duration::from_secs(240);

/// Both have systems of their own and mostly wait, so one runs beside the other.
#[tokio::test]
#[ignore = "needs Chromium: .ci/board"]
async fn twin_shows_what_is_lost_and_an_order_stops_at_crash_points() -> Result<()> {
    let (_shop, browser) = Shop::with_browser().await?;
    browser.until("the button", "!document.querySelector('#twin button').disabled").await?;
    browser.click("#twin button").await?;

    browser.until("the button", "!document.querySelector('#steps-start').disabled").await?;
    browser.click("#steps-start").await?;
    browser.see("the step system", "#steps-line[data-phase=ready]").await?;
    let all =
        messaging::crash_points::ALL.into_iter().flat_map(|point| ACTIONS.map(|action| (point, action)));
    let chosen = match std::env::var("BOARD_STEPS").as_deref() {
        Ok("all") => all.collect(),
        _ => FEW.to_vec(),
    };
    let mut failures = vec![];
    for (number, (point, action)) in chosen.into_iter().enumerate() {
        let result = step(&browser, point, action, number == 0).await;
        let verdict = browser.text("#steps-verdict").await?;
        println!(
            "{point:<20} {action:<8} {}",
            result.as_ref().map_or_else(|error| format!("{error:#}"), |()| verdict)
        );
        failures.extend(result.err().map(|error| format!("{point} {action}: {error:#}")));
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    browser.click("#steps-stop").await?;
    browser.see("the step system to end", "#steps-line[data-phase=off]").await?;

    // Two verdicts: the service holds, and the dual write has lost orders, which are named.
    let verdicts = "document.querySelectorAll('#twin-verdicts .twin').length === 2";
    browser.until_within("both verdicts", verdicts, VERDICT_DEADLINE).await?;
    let (ours, other) = (browser.text(".twin.held").await?, browser.text(".twin.broken li").await?);
    ensure!(ours.starts_with("order service: HELD"), "{ours}");
    ensure!(other.len() == 36, "not the id of an order: {other}");
    ensure!(browser.text(".twin.broken h3").await? == "dual-write: BROKEN");
    browser.take_pictures("board-twin", "#twin-title").await
}

/// Places an order that stops at a crash point, acts on the first process that stops there, and continues all others.
async fn step(browser: &Browser, point: &str, action: &str, picture: bool) -> Result<()> {
    browser.run(&format!("document.querySelector('#steps [name=point]').value = '{point}'")).await?;
    browser.see("the last order to be judged", "#steps-line[data-phase=ready]").await?;
    browser.click("#steps button[type=submit]").await?;
    browser.see("a process to stop", &format!(".stopped[data-point={point}] button")).await?;
    let shown = browser.text(".stopped pre").await?;
    ensure!(shown.contains(point), "the line of code is not shown: {shown}");
    if picture {
        browser.take_pictures("board-steps", "#steps-title").await?;
    }
    // In one step: the page may draw the boxes anew between finding one and clicking it.
    browser
        .run(&format!(
            "document.querySelector('.stopped[data-point={point}] [data-action={action}]').click()"
        ))
        .await?;
    // The same point is passed by every service, and again by what the action causes.
    let go_on =
        "const other = document.querySelector('.stopped [data-action=continue]'); if (other) other.click();
                 return document.querySelector('#steps-line').dataset.phase === 'ready'
                     && document.querySelector('#steps-verdict').textContent !== ''";
    testbed::eventually("the verdict", VERDICT_DEADLINE, async || {
        Ok((browser.run(go_on).await? == serde_json::json!(true)).then_some(()))
    })
    .await?;
    let verdict = browser.text("#steps-verdict").await?;
    ensure!(verdict.starts_with("HELD"), "{verdict}");
    Ok(())
}
