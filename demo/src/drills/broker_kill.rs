//! The broker dies by SIGKILL under load, stays dead for a while, and comes back.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::Drill;
use super::report::{Fact, Refusals, Report};
use super::stage::Stage;
use crate::target::{Target, Verb};

pub(super) const DRILL: Drill = Drill {
    name: "broker-kill",
    claim: "Orders are accepted while RabbitMQ is dead, and every accepted order reaches inventory and billing, has \
            its effect there once, and is confirmed or cancelled by what they answer.",
    run: |stage| Box::pin(run(stage)),
};

/// Load before the fault, so that there is something in flight when it strikes.
const BEFORE: Duration = Duration::from_secs(8);
/// Load while the broker comes back and the backlog drains: the hard part is both at once.
const AFTER: Duration = Duration::from_secs(12);

async fn run(stage: &Stage<'_>) -> Result<Report> {
    let broker = &Target::Broker;
    let rate = stage.options.rate;
    stage.phase("steady", format!("{rate} orders a second"));
    let load = stage.load(BEFORE + stage.options.outage + AFTER);
    sleep(BEFORE).await;

    let pid_before = stage.shop.pid(broker).await?;
    stage.shop.act(Verb::Kill, broker).await?;
    let (killed, killed_at) = (Instant::now(), SystemTime::now());
    let pid_during = stage.shop.pid(broker).await?;
    let name = |pid: Option<u32>| pid.map_or("none".to_owned(), |pid| pid.to_string());
    stage.phase("outage", format!("RabbitMQ (process {}) was killed with SIGKILL", name(pid_before)));

    sleep(stage.options.outage).await;
    let still_down = stage.shop.pid(broker).await?.is_none();
    let outage_end = SystemTime::now();
    let accepted = stage.accepted_between(killed_at, outage_end);
    stage.phase("restart", format!("{accepted} orders were accepted while it was dead; starting it again"));
    stage.shop.act(Verb::Start, broker).await?;
    let dead_for = killed.elapsed().as_secs_f64();
    let pid_after = stage.shop.pid(broker).await?;
    stage.phase("recover", format!("RabbitMQ is back after {dead_for:.1} s, as process {}", name(pid_after)));
    let summary = load.end().await?;

    let facts = vec![
        Fact {
            what: format!("process {} of RabbitMQ was gone after SIGKILL", name(pid_before)),
            observed: pid_before.is_some() && pid_during.is_none(),
        },
        Fact {
            what: format!(
                "still gone {:.0} s later, then back as process {}",
                stage.options.outage.as_secs_f64(),
                name(pid_after)
            ),
            observed: still_down && pid_after.is_some() && pid_after != pid_before,
        },
        Fact { what: format!("{accepted} orders accepted while it was dead"), observed: accepted > 0 },
    ];
    stage.count(facts, summary, Refusals::BreakTheClaim).await
}
