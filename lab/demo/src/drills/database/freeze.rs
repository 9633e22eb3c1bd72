//! Freezes PostgreSQL: its connections stay open, and it does not answer.

use std::time::Duration;

use anyhow::Result;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::target::{Action, Target};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "database-freeze",
    group: Group::Database,
    teaches: "Every wait has a deadline. A request that waits for ever holds a connection that others need.",
    question: "PostgreSQL is stopped with SIGSTOP. What do clients see, and when?",
    claim: "While PostgreSQL is frozen, orders are refused after a deadline and not left waiting. It recovers by itself, \
            and what was acknowledged is there.",
    outage: Duration::from_secs(15),
    system: Subject::Running,
    run: |run| Box::pin(freeze(run)),
};

async fn freeze(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    run.system.act(Action::Pause, &Target::Database).await?;
    run.phase("outage", "stopped PostgreSQL with SIGSTOP");
    tokio::time::sleep(run.outage).await;
    run.system.act(Action::Resume, &Target::Database).await?;
    let summary = run.end(load).await?;
    let (refused, failed) = (summary.refused_in_all(), summary.failed);
    let fact = Fact {
        what: format!("{refused} orders were refused and {failed} got no answer"),
        observed: refused + failed > 0,
    };
    run.report(vec![fact], summary, Refusals::AreExpected).await
}
