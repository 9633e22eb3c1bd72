//! Each mistake turns exactly the levels red that it should, and relays without a mistake hold all.
//!
//! The first four levels, in two minutes; with `JUDGE_ALL=1` all.

#![allow(clippy::print_stdout, reason = "the results are worth reading when a test fails")]

use anyhow::{Result, ensure};
use futures_util::{StreamExt as _, stream};
use judge::{Entrant, LEVELS, Servers, Verdict, judge};
use testbed::{Home, Postgres, RabbitmqCluster, fewer};

/// A mistake of `entrants/python/mistakes.py`.
struct Mistake {
    name: &'static str,
    /// The levels that it breaks. The first is there for it.
    breaks: &'static [u8],
    /// The levels whose fault it does not feel, because it marks an event whatever the broker says.
    proves_nothing: &'static [u8],
}

const MISTAKES: [Mistake; 13] = [
    Mistake { name: "transient", breaks: &[1], ..NONE },
    // It also loses what was marked when a publish is lost or refused, or the broker is away. It publishes without its lock.
    Mistake { name: "mark-first", breaks: &[2, 3, 4, 5, 6], proves_nothing: &[8, 9] },
    Mistake { name: "new-id", breaks: &[2], ..NONE },
    // Without confirms it cannot notice a refusal.
    Mistake { name: "no-confirms", breaks: &[3, 5], proves_nothing: &[2, 8, 9] },
    Mistake { name: "skip-locked", breaks: &[4], ..NONE },
    Mistake { name: "not-mandatory", breaks: &[5], proves_nothing: &[9] },
    Mistake { name: "give-up", breaks: &[6], ..NONE },
    Mistake { name: "cursor", breaks: &[7], ..NONE },
    Mistake { name: "no-timeout", breaks: &[8], ..NONE },
    Mistake { name: "no-backoff", breaks: &[9], ..NONE },
    Mistake { name: "slot", breaks: &[10], ..NONE },
    // It is a slot, too. It never reads the event that the standby has not: it has acknowledged it before.
    Mistake { name: "log", breaks: &[7, 10], proves_nothing: &[11] },
    Mistake { name: "no-barrier", breaks: &[11], ..NONE },
];

const NONE: Mistake = Mistake { name: "", breaks: &[], proves_nothing: &[] };

impl Mistake {
    fn expected(&self, level: u8) -> Verdict {
        match level {
            _ if self.breaks.contains(&level) => Verdict::Broken,
            _ if self.proves_nothing.contains(&level) => Verdict::Inconclusive,
            _ => Verdict::Held,
        }
    }
}

/// So many mistakes are judged at the same time, each with separate servers: the judge mostly waits. Fewer on a slow machine.
const AT_ONCE: u32 = 3;

fn all() -> bool {
    std::env::var_os("JUDGE_ALL").is_some()
}

fn levels() -> impl Iterator<Item = u8> {
    (1..).take(if all() { LEVELS.len() } else { 4 })
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

#[tokio::test(flavor = "multi_thread")]
async fn relays_without_a_mistake_hold_each_level() -> Result<()> {
    let servers = servers().await?;
    for name in ["ours", "one-file", "python"] {
        let entrant = Entrant::load(name)?;
        entrant.build().await?;
        for level in levels() {
            let verdict = verdict(&servers, &entrant, level).await;
            ensure!(verdict == Verdict::Held, "{name} did not hold level {level}");
        }
    }
    Ok(())
}

// On several threads: `pg_basebackup` blocks one until it has copied the database through the judge's proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_mistake_turns_its_levels_red_and_no_others() -> Result<()> {
    let python = Entrant::load("python")?;
    python.build().await?;
    let judged = MISTAKES.iter().map(|mistake| (mistake, python.clone().with("RELAY_MISTAKE", mistake.name)));
    let judged = stream::iter(judged).map(|(mistake, entrant)| unexpected(mistake, entrant));
    let mut wrong = vec![];
    let mut judged = judged.buffer_unordered(fewer(AT_ONCE) as usize);
    while let Some(found) = judged.next().await {
        wrong.extend(found?);
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The verdicts on a mistake that are not as they should be. Of the first four levels only those are judged that it does not
/// hold, to save minutes.
async fn unexpected(mistake: &Mistake, entrant: Entrant) -> Result<Vec<String>> {
    let levels: Vec<_> =
        levels().filter(|level| all() || mistake.expected(*level) != Verdict::Held).collect();
    if levels.is_empty() {
        return Ok(vec![]);
    }
    let servers = servers().await?;
    let mut wrong = vec![];
    for level in levels {
        let (verdict, expected) = (verdict(&servers, &entrant, level).await, mistake.expected(level));
        if verdict != expected {
            wrong.push(format!("{} on level {level}: {verdict:?}, not {expected:?}", mistake.name));
        }
    }
    Ok(wrong)
}
