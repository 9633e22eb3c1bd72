//! A defect that is repaired, and a replay of what it set aside, twice.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::own_system::OwnSystem;
use crate::set_aside::{DEFECT, REPAIR, replay_all};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "replayed-twice",
    group: Group::Data,
    teaches: "A replay goes through the same deduplication as a delivery, so an operator who is unsure may repeat it.",
    question: "A defect makes one order in a hundred fail. It is repaired, and everything is replayed, twice. What happens \
               the second time?",
    claim: "A replay applies what was set aside, once. A second replay finds nothing to do.",
    outage: Duration::from_secs(8),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(replay_twice(run)),
};

async fn replay_twice(run: &DrillRun<'_>) -> Result<Report> {
    run.system.administer(DEFECT).await?;
    let load = run.steady().await;
    run.phase("defect", "inventory and billing fail over one order in a hundred");
    let accepted = run.accepted_meanwhile().await;
    let aside = run
        .felt("events are set aside", async || {
            let aside = run.system.metric("inventory", "inbox_dead_letters").await?
                + run.system.metric("billing", "inbox_dead_letters").await?;
            Ok((aside > 2.0).then(|| format!("{aside} events are set aside")))
        })
        .await;
    let summary = run.end(load).await?;
    // Everything that can be applied is, before the repair.
    run.settled().await?;
    run.system.administer(REPAIR).await?;
    let first = replay_all(run.system).await?;
    let second = replay_all(run.system).await?;
    run.phase("replay", format!("the first replay applied {first} events, the second {second}"));
    let replayed = Fact { what: format!("a replay applied {first} events"), observed: first > 0 };
    let mut report = run.report(vec![accepted, aside, replayed], summary, Refusals::BreakTheClaim).await?;
    if second > 0 {
        report.refute(format!("the second replay applied {second} events"));
    }
    Ok(report)
}
