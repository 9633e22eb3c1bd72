//! Each level turns red for the relay that has its mistake, and green for two that have none.
//!
//! The first four levels, in two minutes; with `JUDGE_ALL=1` all nine.

#![allow(clippy::print_stdout, reason = "the results are worth reading when a test fails")]

use anyhow::{Result, ensure};
use judge::{Entrant, Servers, Verdict, judge};
use testbed::{Home, Postgres, RabbitmqCluster};

/// The mistakes of `entrants/python/mistakes.py`, each with the level that is there for it. Some turn others red as well.
const MISTAKES: [(&str, u8); 10] = [
    ("transient", 1),
    ("mark-first", 2),
    ("new-id", 2),
    ("no-confirms", 3),
    ("skip-locked", 4),
    ("not-mandatory", 5),
    ("give-up", 6),
    ("cursor", 7),
    ("no-timeout", 8),
    ("no-backoff", 9),
];

fn last_level() -> u8 {
    if std::env::var_os("JUDGE_ALL").is_some() { 9 } else { 4 }
}

async fn servers() -> Result<Servers> {
    let home = Home::choose().await?;
    Servers::set_up(tokio::try_join!(Postgres::private_in(home), RabbitmqCluster::start(home, 1))?).await
}

async fn verdict(servers: &Servers, entrant: &Entrant, level: u8) -> Verdict {
    let result = judge(servers, entrant, level).await;
    println!("{}\n{}", entrant.name, result.lines().join("\n"));
    result.verdict
}

#[tokio::test]
async fn ours_and_python_hold_each_level() -> Result<()> {
    let servers = servers().await?;
    for name in ["ours", "python"] {
        let entrant = Entrant::load(name)?;
        entrant.build().await?;
        for level in 1..=last_level() {
            let verdict = verdict(&servers, &entrant, level).await;
            ensure!(verdict == Verdict::Held, "{name} did not hold level {level}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn each_mistake_turns_its_level_red() -> Result<()> {
    let servers = servers().await?;
    let python = Entrant::load("python")?;
    python.build().await?;
    for (mistake, level) in MISTAKES.into_iter().filter(|(_, level)| *level <= last_level()) {
        let entrant = python.clone().with("RELAY_MISTAKE", mistake);
        let verdict = verdict(&servers, &entrant, level).await;
        ensure!(verdict == Verdict::Broken, "level {level} did not notice {mistake}");
    }
    Ok(())
}
