//! Kills PostgreSQL with SIGKILL under load, and starts it again after the outage.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::target::Target;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "database-kill",
    group: Group::Database,
    teaches: "A 201 is sent after the commit, never before: what was acknowledged is on disk.",
    question: "Which orders may a client rely on: those with a 201, those with a 503, those without an answer?",
    claim: "While PostgreSQL is down no order is accepted, and refused orders have no effect anywhere. Orders that \
            were accepted before and after keep their promises.",
    outage: Duration::from_secs(20),
    system: Subject::Running,
    run: |run| Box::pin(kill_database(run)),
};

const LOAD_BEFORE: Duration = Duration::from_secs(5);
const LOAD_AFTER: Duration = Duration::from_secs(10);
/// Answers that were on their way when PostgreSQL was killed have arrived after this time.
const IN_FLIGHT: Duration = Duration::from_secs(1);

async fn kill_database(run: &DrillRun<'_>) -> Result<Report> {
    run.phase("steady", format!("{} orders per second", run.rate));
    let load = run.load_until_stopped();
    sleep(LOAD_BEFORE).await;

    let killed = run.kill(Target::Database).await?;
    run.phase("outage", format!("killed PostgreSQL ({}) with SIGKILL", killed.process()));
    sleep(IN_FLIGHT).await;
    let down_since = SystemTime::now();
    sleep(run.outage).await;
    let accepted_while_down = run.accepted_between(down_since, SystemTime::now());

    run.phase(
        "restart",
        format!("{accepted_while_down} orders were accepted while it was down; starting it again"),
    );
    let restarted = run.restart(killed).await?;
    let repaired_at = SystemTime::now();
    let (seconds, process) = (restarted.after.as_secs_f64(), restarted.process_after());
    run.phase("recover", format!("PostgreSQL works again after {seconds:.1} s, as {process}"));
    sleep(LOAD_AFTER).await;
    let summary = load.stop().await?;
    let accepted_after = run.accepted_between(repaired_at, SystemTime::now());

    let refused = summary.refused_in_all() + summary.failed;
    let facts = vec![
        Fact {
            what: format!("{} of PostgreSQL was killed and stayed down", restarted.process_before()),
            observed: restarted.was_down(),
        },
        Fact { what: format!("{refused} orders were refused or got no answer"), observed: refused > 0 },
        Fact {
            what: format!("{accepted_after} orders were accepted after it ran again, as {process}"),
            observed: accepted_after > 0 && restarted.runs_again(),
        },
    ];
    let mut report = run.report(facts, summary, Refusals::AreExpected).await?;
    if accepted_while_down > 0 {
        report.refute(format!("{accepted_while_down} orders were accepted without a database"));
    }
    Ok(report)
}
