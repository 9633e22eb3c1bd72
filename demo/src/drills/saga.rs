//! Good orders, orders that cannot be had, and customers who cannot pay, while every service, the payment provider and
//! the broker are killed, one after the other.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::Drill;
use super::report::{Fact, Refusals, Report};
use super::stage::Stage;
use crate::target::{Target, Verb};

pub(super) const DRILL: Drill = Drill {
    name: "saga",
    claim: "Whatever is killed in the middle of it, every accepted order ends confirmed or cancelled; what was put aside \
            and what was charged for a cancelled one is given back, once; and stock and money add up.",
    run: |stage| Box::pin(run(stage)),
};

/// Load before the first kill, between a start and the next kill, and at the end.
const BETWEEN: Duration = Duration::from_secs(4);
/// How long a killed service stays dead.
const DEAD: Duration = Duration::from_secs(2);

async fn run(stage: &Stage<'_>) -> Result<Report> {
    let services =
        ["orders", "inventory", "billing", "provider"].map(|name| Target::Service(name.to_owned()));
    stage.phase(
        "steady",
        format!("{} orders a second, one in five of which cannot end well", stage.options.rate),
    );
    let load = stage.load_until_enough();
    let mut facts = vec![];
    for (target, dead_for) in
        services.into_iter().map(|service| (service, DEAD)).chain([(Target::Broker, stage.options.outage)])
    {
        sleep(BETWEEN).await;
        let before = stage.shop.pid(&target).await?;
        stage.shop.act(Verb::Kill, &target).await?;
        let gone = stage.shop.pid(&target).await?.is_none();
        stage.phase("kill", format!("{target} was killed with SIGKILL"));
        sleep(dead_for).await;
        stage.shop.act(Verb::Start, &target).await?;
        let after = stage.shop.pid(&target).await?;
        facts.push(Fact {
            what: format!("{target} was killed and came back"),
            observed: before.is_some() && gone && after.is_some() && after != before,
        });
    }
    sleep(BETWEEN).await;
    let summary = load.enough().await?;
    let mut report = stage.count(facts, summary, Refusals::AreExpected).await?;
    let audit = &report.audit;
    let (confirmed, cancelled, refunded) = (audit.confirmed, audit.cancelled, audit.refunded);
    report.require(Fact {
        what: format!(
            "{confirmed} orders were confirmed and {cancelled} cancelled, and {refunded} cents given back"
        ),
        observed: confirmed > 0 && cancelled > 0 && refunded > 0,
    });
    Ok(report)
}
