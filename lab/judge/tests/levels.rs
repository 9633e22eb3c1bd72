//! Each mistake turns red the levels that it should, and relays without a mistake hold all.
//!
//! The first four levels and the last one, of each mistake the level that is there for it; with `JUDGE_ALL=1` all.

#![allow(clippy::print_stdout, reason = "the results are worth reading when a test fails")]

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use judge::{Entrant, LEVELS, Servers, Verdict, judge};
use testbed::{Home, Postgres, RabbitmqCluster, fewer};

/// A mistake.
struct Mistake {
    name: &'static str,
    /// The levels that it breaks, at least. The first is there for it.
    breaks: &'static [u8],
}

/// The mistakes of `entrants/python/mistakes.py`, in a relay that publishes one event at a time.
const MISTAKES: [Mistake; 23] = [
    mistake("transient", &[1]),
    mistake("twice", &[1]),
    mistake("small-only", &[1]),
    mistake("unordered", &[1]),
    mistake("deaf", &[1]),
    mistake("from-the-start", &[4]),
    mistake("mark-first", &[2, 3, 4, 5, 6]),
    mistake("new-id", &[2]),
    mistake("no-confirms", &[3, 5, 9]),
    mistake("skip-locked", &[4]),
    mistake("not-mandatory", &[5, 9]),
    mistake("past-refused", &[5, 12]),
    mistake("give-up", &[6, 5]),
    mistake("cursor", &[7, 5]),
    mistake("window", &[7]),
    mistake("no-timeout", &[8]),
    mistake("no-backoff", &[9]),
    mistake("slot", &[10]),
    mistake("log", &[7, 10]),
    mistake("no-barrier", &[11]),
    mistake("nack-is-fine", &[12]),
    mistake("last-confirm", &[12, 5, 9]),
    mistake("mark-later", &[12]),
];

/// Flaws of `lab/flaws` in `ours`, which publishes batches, with several confirms outstanding, from two relays.
const FLAWS: [Mistake; 8] = [
    mistake("mark-before-confirm", &[2]),
    mistake("new-id-per-attempt", &[2]),
    mistake("confirms-ignored", &[3]),
    mistake("skip-locked-on-rows", &[4]),
    mistake("nack-taken-for-confirm", &[12]),
    mistake("unroutable-ignored", &[5]),
    mistake("return-trusted-to-its-confirm", &[5]),
    mistake("cursor-over-seq", &[7]),
];

const fn mistake(name: &'static str, breaks: &'static [u8]) -> Mistake {
    Mistake { name, breaks }
}

/// So many entrants are judged at the same time, each with separate servers: the judge mostly waits. Fewer on a slow machine.
const AT_ONCE: u32 = 3;

/// The levels of a run without `JUDGE_ALL`.
const SHORT: [u8; 5] = [1, 2, 3, 4, 12];

fn all() -> bool {
    std::env::var_os("JUDGE_ALL").is_some()
}

fn levels() -> impl Iterator<Item = u8> {
    (1..).take(LEVELS.len()).filter(|level| all() || SHORT.contains(level))
}

async fn servers() -> Result<Servers> {
    let home = Home::choose().await?;
    Servers::set_up(tokio::try_join!(Postgres::private_in(home), RabbitmqCluster::start(home, 1))?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn relays_without_a_mistake_hold_each_level() -> Result<()> {
    let mut entrants = vec![];
    for name in ["ours", "one-file", "python"] {
        let entrant = Entrant::load(name)?;
        entrant.build().await?;
        entrants.push((entrant, levels().collect()));
    }
    for (entrant, level, verdict) in verdicts(entrants).await? {
        ensure!(verdict == Verdict::Held, "{entrant} did not hold level {level}: {verdict:?}");
    }
    Ok(())
}

// On several threads: `pg_basebackup` blocks one until it has copied the database through the judge's proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_mistake_turns_its_levels_red() -> Result<()> {
    let mut wrong = vec![];
    for (name, mistakes) in [("python", &MISTAKES[..]), ("ours", &FLAWS[..])] {
        let entrant = Entrant::load(name)?;
        for mistake in mistakes {
            let broken = if all() { mistake.breaks } else { &mistake.breaks[..1] };
            let levels = levels().filter(|level| broken.contains(level)).collect();
            wrong.push((entrant.clone().with("RELAY_MISTAKE", mistake.name), levels));
        }
        // One build is of all its mistakes.
        wrong.last().context("there is no mistake")?.0.build().await?;
    }
    let found = verdicts(wrong).await?;
    let held: Vec<_> = found.iter().filter(|(.., verdict)| *verdict != Verdict::Broken).collect();
    ensure!(held.is_empty(), "not broken: {held:#?}");
    Ok(())
}

/// The verdict on each of these entrants, on each of these levels.
async fn verdicts(entrants: Vec<(Entrant, Vec<u8>)>) -> Result<Vec<(String, u8, Verdict)>> {
    let entrants = entrants.into_iter().filter(|(_, levels)| !levels.is_empty());
    let judged = stream::iter(entrants).map(async |(entrant, levels)| {
        let (servers, mut verdicts) = (servers().await?, vec![]);
        for level in levels {
            let result = judge(&servers, &entrant, level).await;
            println!("{}\n{}", entrant.name, result.lines().join("\n"));
            verdicts.push((entrant.name.clone(), level, result.verdict));
        }
        anyhow::Ok(verdicts)
    });
    let judged: Vec<_> = judged.buffer_unordered(fewer(AT_ONCE) as usize).try_collect().await?;
    Ok(judged.concat())
}
