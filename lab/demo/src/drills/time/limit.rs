//! An outage that lasts longer than an order may wait for its answers.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Refusals, Report};
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::target::{Action, Target};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "outage-beyond-the-limit",
    group: Group::Time,
    teaches: "A limit counts the time in which an answer was possible. While the question cannot be delivered, it must not run out.",
    question: "Orders wait ten seconds for their answers, and RabbitMQ is away for twenty. Which orders are cancelled?",
    claim: "An outage of the broker that is longer than the answer limit cancels no order: what was never asked, and what \
            is answered and waits, does not time out.",
    outage: Duration::from_secs(20),
    system: Subject::Own(|| OwnSystem {
        setup: Setup::default().with("ORDERS_ANSWER_WITHIN", "10s"),
        ..OwnSystem::default()
    }),
    run: |run| Box::pin(outlast(run)),
};

async fn outlast(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    run.system.act(Action::Kill, &Target::Broker).await?;
    run.phase("outage", "killed RabbitMQ; an order may wait ten seconds for its answers");
    let accepted = run.accepted_meanwhile().await;
    let late = run
        .felt("an order has waited for longer than the limit", async || {
            let oldest = run.system.metric("orders", "orders_oldest_open_seconds").await?;
            Ok((oldest > 12.0).then(|| format!("the oldest order has waited for {oldest:.0} s")))
        })
        .await;
    run.system.act(Action::Start, &Target::Broker).await?;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![accepted, late], summary, Refusals::BreakTheClaim).await?;
    run.refute_time_outs(&mut report).await?;
    Ok(report)
}
