//! Kills every service, the payment provider and the broker, one after the other, under a load in which some orders
//! cannot be confirmed: the stock is too small, or the customer cannot pay.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::target::Target;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "saga",
    group: Group::Service,
    teaches: "Each step of the saga is one local transaction, and its event is the only thing that starts the next one.",
    question: "Every process is killed once. Which orders stay half-way, paid but not reserved?",
    claim: "Whatever is killed meanwhile, every accepted order ends confirmed or cancelled. What was reserved and \
            charged for a cancelled order is released and refunded, once. Stock and money add up.",
    outage: Duration::from_secs(20),
    system: Subject::Running,
    run: |run| Box::pin(kill_each(run)),
};

/// The load before the first kill, between a start and the next kill, and after the last start.
const BETWEEN_KILLS: Duration = Duration::from_secs(4);
/// How long a killed service stays down.
const SERVICE_OUTAGE: Duration = Duration::from_secs(2);

async fn kill_each(run: &DrillRun<'_>) -> Result<Report> {
    let services = ["orders", "inventory", "billing", "provider"];
    let services = services.map(|name| (Target::Service(name.to_owned()), SERVICE_OUTAGE));
    run.phase("steady", format!("{} orders per second, one in five of which cannot be confirmed", run.rate));
    let load = run.load_until_stopped();
    let mut facts = vec![];
    for (target, outage) in services.into_iter().chain([(Target::Broker, run.outage)]) {
        sleep(BETWEEN_KILLS).await;
        let killed = run.kill(target.clone()).await?;
        run.phase("kill", format!("killed {target} ({}) with SIGKILL", killed.process()));
        sleep(outage).await;
        let restarted = run.restart(killed).await?;
        facts.push(Fact {
            what: format!("{target} was killed and runs again"),
            observed: restarted.was_down() && restarted.runs_again(),
        });
    }
    sleep(BETWEEN_KILLS).await;
    let summary = load.stop().await?;
    let mut report = run.report(facts, summary, Refusals::AreExpected).await?;
    let found = &report.reconciliation;
    let (confirmed, cancelled, refunded) = (found.confirmed, found.cancelled, found.refunded);
    report.require(Fact {
        what: format!(
            "{confirmed} orders were confirmed and {cancelled} cancelled, and {refunded} cents refunded"
        ),
        observed: confirmed > 0 && cancelled > 0 && refunded > 0,
    });
    Ok(report)
}
