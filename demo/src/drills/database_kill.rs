//! PostgreSQL dies by SIGKILL under load, stays dead for a while, and comes back.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::Drill;
use super::report::{Fact, Refusals, Report};
use super::stage::Stage;
use crate::target::{Target, Verb};

pub(super) const DRILL: Drill = Drill {
    name: "database-kill",
    claim: "While PostgreSQL is dead no order is accepted, and nobody hears of those that are refused. What was accepted \
            before and after keeps its promise.",
    run: |stage| Box::pin(run(stage)),
};

const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(10);
/// Answers that were under way at the kill have come by then.
const SETTLED: Duration = Duration::from_secs(1);

async fn run(stage: &Stage<'_>) -> Result<Report> {
    let database = &Target::Database;
    stage.phase("steady", format!("{} orders a second", stage.options.rate));
    let load = stage.load_until_enough();
    sleep(BEFORE).await;

    let before = stage.shop.pid(database).await?;
    stage.shop.act(Verb::Kill, database).await?;
    let killed = Instant::now();
    let during = stage.shop.pid(database).await?;
    let name = |pid: Option<u32>| pid.map_or("none".to_owned(), |pid| pid.to_string());
    stage.phase("outage", format!("PostgreSQL (process {}) was killed with SIGKILL", name(before)));
    sleep(SETTLED).await;
    let dead = SystemTime::now();
    sleep(stage.options.outage).await;
    let accepted = stage.accepted_between(dead, SystemTime::now());
    let still_down = stage.shop.pid(database).await?.is_none();

    stage.phase("restart", format!("{accepted} orders were accepted while it was dead; starting it again"));
    stage.shop.act(Verb::Start, database).await?;
    let after = stage.shop.pid(database).await?;
    let dead_for = killed.elapsed().as_secs_f64();
    let back = SystemTime::now();
    stage.phase("recover", format!("PostgreSQL is back after {dead_for:.1} s, as process {}", name(after)));
    sleep(AFTER).await;
    let summary = load.enough().await?;
    let again = stage.accepted_between(back, SystemTime::now());

    let facts = vec![
        Fact {
            what: format!("process {} of PostgreSQL was gone after SIGKILL", name(before)),
            observed: before.is_some() && during.is_none() && still_down,
        },
        Fact {
            what: format!(
                "{} orders were refused or got no answer",
                summary.refused_in_all() + summary.failed
            ),
            observed: summary.refused_in_all() + summary.failed > 0,
        },
        Fact {
            what: format!("{again} orders accepted after it was back, as process {}", name(after)),
            observed: again > 0 && after.is_some() && after != before,
        },
    ];
    let mut report = stage.count(facts, summary, Refusals::AreExpected).await?;
    if accepted > 0 {
        report.refute(format!("{accepted} orders were accepted without a database"));
    }
    Ok(report)
}
