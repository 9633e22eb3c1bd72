//! Each level turns red for the relay that has its mistake, and for no correct one.

#![allow(clippy::print_stdout, reason = "the results are worth reading when a test fails")]

use anyhow::{Result, ensure};
use judge::{Entrant, Servers, Verdict, judge};
use testbed::{Home, Postgres, RabbitmqCluster};

/// The mistakes of `entrants/python/mistakes.py`, and the levels that each turns red: its own level first.
const MISTAKES: [(&str, &[u8]); 10] = [
    ("transient", &[1]),
    ("mark-first", &[2]),
    ("new-id", &[2]),
    ("no-confirms", &[3]),
    ("skip-locked", &[4]),
    ("not-mandatory", &[5]),
    ("give-up", &[6]),
    ("cursor", &[7]),
    ("no-timeout", &[8]),
    ("no-backoff", &[9]),
];

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
async fn ours_and_python_hold_the_first_four_levels() -> Result<()> {
    let servers = servers().await?;
    for name in ["ours", "python"] {
        let entrant = Entrant::load(name)?;
        entrant.build().await?;
        for level in 1..=4 {
            let verdict = verdict(&servers, &entrant, level).await;
            ensure!(verdict == Verdict::Held, "{name} did not hold level {level}");
        }
    }
    Ok(())
}

/// `JUDGE_ALL=1` tries each mistake on all levels, which takes half an hour; otherwise those of the first four levels meet
/// their own.
#[tokio::test]
async fn each_mistake_turns_its_levels_red_and_no_other() -> Result<()> {
    let servers = servers().await?;
    let python = Entrant::load("python")?;
    python.build().await?;
    let all = std::env::var_os("JUDGE_ALL").is_some();
    let mut unexpected = vec![];
    for (mistake, red) in MISTAKES.into_iter().filter(|(_, red)| all || red[0] <= 4) {
        let entrant = python.clone().with("RELAY_MISTAKE", mistake);
        let levels = if all { (1..=9).collect() } else { red[..1].to_vec() };
        for level in levels {
            let is_red = verdict(&servers, &entrant, level).await == Verdict::Broken;
            if is_red != red.contains(&level) {
                unexpected.push(format!("{mistake} on level {level}"));
            }
        }
    }
    ensure!(unexpected.is_empty(), "not as in the table: {}", unexpected.join(", "));
    Ok(())
}
