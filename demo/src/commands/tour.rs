//! `cargo demo`: all of it, by itself.

use anyhow::Result;

use super::order::{self, Kind};
use crate::choice::Choice;
use crate::drills::{self, Options};
use crate::interrupt::or_interrupted;
use crate::shop::Shop;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Starts the system, follows one order, kills the broker under load, verifies, stops.
pub(crate) async fn run(choice: Choice, options: Options, terminal: &Terminal) -> Result<Verdict> {
    terminal.say(
        "The transactional outbox: orders go in by HTTP, events reach inventory and billing by RabbitMQ.",
    );
    terminal.say("This starts the system, places orders, kills the broker under load, and counts.");
    terminal.say("");
    let Some(shop) = Shop::find_or_start(choice, terminal).await? else {
        return Ok(Verdict::Interrupted);
    };
    let verdict = show(&shop, options, terminal).await;
    let stopped = shop.stop(terminal).await;
    let verdict = verdict?;
    stopped?;
    if verdict == Verdict::Held {
        terminal
            .say("Next: `cargo demo up` to try it by hand, `cargo demo drill list` for what can be broken.");
    }
    // Once more as the last line: what scrolled by above is what a hurried reader misses.
    terminal.say(format!("VERDICT  {}", verdict.word()));
    Ok(verdict)
}

async fn show(shop: &Shop, options: Options, terminal: &Terminal) -> Result<Verdict> {
    terminal.say("");
    for (words, kind) in [
        ("One order, from its acknowledgement to its end:", Kind::Good),
        ("One by a customer who cannot pay. What inventory has put aside is put back:", Kind::Declined),
    ] {
        terminal.say(words);
        let followed = or_interrupted(order::follow(shop, kind, terminal, false)).await?;
        if followed != Verdict::Held {
            return Ok(followed);
        }
    }
    drills::run(drills::find("broker-kill")?, options, shop, terminal).await
}
