//! A defect that is repaired, and a replay of what it set aside, twice.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::own_system::OwnSystem;
use crate::set_aside::{add_defect, publish_again, repair_defect, replay_all};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "replayed-twice",
    group: Group::Data,
    teaches: "A replay goes through the same deduplication as a delivery, so an operator who is unsure may repeat it.",
    question: "A defect makes one order in a hundred fail. It is repaired, everything is replayed, twice, and then the same \
               events are published again. What happens the second and the third time?",
    claim: "A replay applies what was set aside, once. A second replay finds nothing to do, and copies change nothing.",
    outage: Duration::from_secs(8),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(replay_twice(run)),
};

/// The first events of the orders that the defect is about.
const REFUSED: &str = "
    select coalesce(json_agg(event_id), '[]')::text from orders.outbox
    where aggregate_version = 1 and abs(hashtext(aggregate_id::text)) % 100 = 0";
/// When the operator begins to doubt. The records of what was applied have to last longer.
const DOUBT: Duration = Duration::from_secs(3);

async fn replay_twice(run: &DrillRun<'_>) -> Result<Report> {
    add_defect(run.system).await?;
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
    repair_defect(run.system).await?;
    let first = replay_all(run.system).await?;
    let second = replay_all(run.system).await?;
    sleep(DOUBT).await;
    let again = publish_again(run.system, REFUSED).await?;
    run.phase(
        "replay",
        format!("the first replay applied {first} events, the second {second}; {again} were published again"),
    );
    let replayed = Fact { what: format!("a replay applied {first} events"), observed: first > 0 };
    let copies = Fact { what: format!("{again} events were published again"), observed: again > 0 };
    let mut report =
        run.report(vec![accepted, aside, replayed, copies], summary, Refusals::BreakTheClaim).await?;
    if second > 0 {
        report.refute(format!("the second replay applied {second} events"));
    }
    Ok(report)
}
