//! Connections that are reset at the worst moment.

use std::time::Duration;

use anyhow::Result;
use fault_proxy::{Direction, Effect, Fault};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::own_system::broker_route;

pub(in crate::drills) const CONFIRM_LOST: Drill = Drill {
    name: "confirm-lost",
    group: Group::Network,
    teaches: "Between the broker's confirm and the relay's knowledge of it lies a network. At least once is all there is.",
    question: "The broker has the message, and the connection is reset before its confirm arrives. How often is it sent?",
    claim: "Events whose confirm was lost are published again under the same ids, and the consumers drop the copies.",
    outage: Duration::from_secs(10),
    system: Subject::Proxied,
    run: |run| Box::pin(lose_confirms(run)),
};

pub(in crate::drills) const ACK_LOST: Drill = Drill {
    name: "ack-lost",
    group: Group::Network,
    teaches: "A consumer commits first and acknowledges then. What it could not acknowledge is delivered again.",
    question: "Inventory has committed, and its connection is reset before its acknowledgement arrives. What is delivered?",
    claim: "Messages whose acknowledgement was lost are delivered again, recognised, and change nothing.",
    outage: Duration::from_secs(10),
    system: Subject::Proxied,
    run: |run| Box::pin(lose_acknowledgements(run)),
};

/// `basic.ack` begins with these bytes: class 60, method 80. The broker sends it as a confirm, a consumer as an
/// acknowledgement. (AMQP 0-9-1, 1.8.3.13)
const ACK: &[u8] = &[0, 60, 0, 80];
/// How many connections are reset.
const RESETS: u32 = 5;

async fn lose_confirms(run: &DrillRun<'_>) -> Result<Report> {
    reset_at_ack(run, "orders", Direction::TowardClient, "confirm").await
}

async fn lose_acknowledgements(run: &DrillRun<'_>) -> Result<Report> {
    reset_at_ack(run, "inventory", Direction::TowardUpstream, "acknowledgement").await
}

async fn reset_at_ack(
    run: &DrillRun<'_>,
    service: &'static str,
    direction: Direction,
    what: &str,
) -> Result<Report> {
    let (load, route) = (run.steady().await, broker_route(service));
    let before = run.proxies()?.stats(&route).await?.resets;
    let effect = Effect::ResetOnPattern { pattern: ACK.to_vec(), forward: false };
    let fault = Fault::new(effect, direction, Duration::from_secs(60)).times(RESETS);
    run.proxies()?.replace(&route, fault).await?;
    run.phase(
        "outage",
        format!("each connection of {service} is reset before a {what} passes, {RESETS} times"),
    );
    let resets = run
        .felt(&format!("{RESETS} connections were reset"), async || {
            let resets = run.proxies()?.stats(&route).await?.resets - before;
            Ok((resets >= u64::from(RESETS)).then(|| format!("{resets} connections were reset at a {what}")))
        })
        .await;
    let accepted = run.accepted_meanwhile().await;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![resets, accepted], summary, Refusals::BreakTheClaim).await?;
    let dropped = report.duplicates_dropped.known();
    report.require(Fact {
        what: format!("{dropped} copies were recognised and dropped"),
        observed: dropped > 0,
    });
    Ok(report)
}
