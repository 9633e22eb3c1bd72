//! Kills the broker with SIGKILL under load, and starts it again after the outage.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::target::Target;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "broker-kill",
    group: Group::Broker,
    teaches: "An order needs the database only. The outbox keeps its event until the broker has confirmed it.",
    question: "Are orders accepted while RabbitMQ is dead? What happens to them when it is back?",
    claim: "Orders are accepted while RabbitMQ is down. Every accepted order reaches inventory and billing, has its \
            effect there once, and is confirmed or cancelled by their answers.",
    outage: Duration::from_secs(20),
    system: Subject::Running,
    run: |run| Box::pin(kill_broker(run)),
};

async fn kill_broker(run: &DrillRun<'_>) -> Result<Report> {
    let outage = run.outage;
    let load = run.steady().await;

    let killed = run.kill(Target::Broker).await?;
    let killed_at = SystemTime::now();
    run.phase("outage", format!("killed RabbitMQ ({}) with SIGKILL", killed.process()));
    sleep(outage).await;
    let accepted = run.accepted_between(killed_at, SystemTime::now());
    run.phase("restart", format!("{accepted} orders were accepted while it was down; starting it again"));
    let restarted = run.restart(killed).await?;
    let (seconds, process) = (restarted.after.as_secs_f64(), restarted.process_after());
    run.phase("recover", format!("RabbitMQ works again after {seconds:.1} s, as {process}"));
    let summary = run.end(load).await?;

    let facts = vec![
        Fact {
            what: format!(
                "{} of RabbitMQ was killed and stayed down for {:.0} s",
                restarted.process_before(),
                outage.as_secs_f64()
            ),
            observed: restarted.was_down(),
        },
        Fact { what: format!("RabbitMQ runs again, as {process}"), observed: restarted.runs_again() },
        Fact { what: format!("{accepted} orders were accepted while it was down"), observed: accepted > 0 },
    ];
    run.report(facts, summary, Refusals::BreakTheClaim).await
}
