//! Freezes the broker: its connections stay open, and it does not answer.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Refusals, Report};
use crate::target::{Action, Target};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "broker-freeze",
    group: Group::Broker,
    teaches: "A frozen peer closes no connection. Only heartbeats and deadlines notice it.",
    question: "RabbitMQ is stopped with SIGSTOP: its sockets stay open. How do the services know?",
    claim: "Orders are accepted while RabbitMQ is frozen, the services notice it, and everything arrives once after it \
            continues.",
    outage: Duration::from_secs(25),
    system: Subject::Running,
    run: |run| Box::pin(freeze(run)),
};

async fn freeze(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    run.system.act(Action::Pause, &Target::Broker).await?;
    run.phase("outage", "stopped RabbitMQ with SIGSTOP");
    let accepted = run.accepted_meanwhile().await;
    let noticed = run.lost_connection("orders", "publisher").await;
    run.system.act(Action::Resume, &Target::Broker).await?;
    let summary = run.end(load).await?;
    run.report(vec![accepted, noticed], summary, Refusals::BreakTheClaim).await
}
