//! A network that carries everything, late.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Result;
use fault_proxy::{Direction, Effect};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Refusals, Report};
use crate::own_system::{broker_route, database_route};

pub(in crate::drills) const SLOW: Drill = Drill {
    name: "network-slow",
    group: Group::Network,
    teaches: "Latency costs round trips. What is done together pays for one, whatever the distance.",
    question: "Each byte between services and servers takes 40 ms longer. At which rate does the relay fall behind?",
    claim: "With 40 ms in each direction orders are accepted, events arrive once, and no backlog is left.",
    outage: Duration::from_secs(15),
    system: Subject::Proxied,
    run: |run| Box::pin(slow(run)),
};

pub(in crate::drills) const NARROW: Drill = Drill {
    name: "network-narrow",
    group: Group::Network,
    teaches: "A slow link fills buffers, and then one of the parts has to wait. It should not be the customer.",
    question: "The link from orders to RabbitMQ carries 8 kB a second, less than the events need. Who waits?",
    claim: "While the link to RabbitMQ is too narrow, orders are accepted, and the backlog is on disk.",
    outage: Duration::from_secs(15),
    system: Subject::Proxied,
    run: |run| Box::pin(narrow(run)),
};

const DELAY: Duration = Duration::from_millis(40);
const BYTES_PER_SECOND: NonZeroU32 = NonZeroU32::new(8_192).expect("not zero");

async fn slow(run: &DrillRun<'_>) -> Result<Report> {
    let routes: Vec<_> = ["orders", "inventory", "billing"]
        .into_iter()
        .flat_map(|service| [broker_route(service), database_route(service)])
        .collect();
    let load = run.steady().await;
    for route in &routes {
        run.proxies()?.set(route, Effect::Delay(DELAY), Direction::Both).await?;
    }
    run.phase("outage", "each byte takes 40 ms longer, to PostgreSQL and to RabbitMQ");
    let accepted = run.accepted_meanwhile().await;
    let slower = run
        .felt("orders were answered after more than 50 ms", async || {
            let seconds = "http_request_seconds";
            let all = run.system.metric("orders", &format!("{seconds}_count{{status=\"201\"}}")).await?;
            let fast = format!("{seconds}_bucket{{status=\"201\",le=\"0.05\"}}");
            let late = all - run.system.metric("orders", &fast).await?;
            Ok((late > 10.0).then(|| format!("{late} orders were answered after more than 50 ms")))
        })
        .await;
    for route in &routes {
        run.proxies()?.clear(route).await?;
    }
    let summary = run.end(load).await?;
    run.report(vec![accepted, slower], summary, Refusals::BreakTheClaim).await
}

async fn narrow(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, broker_route("orders"));
    run.proxies()?
        .set(&route, Effect::Trickle { bytes_per_second: BYTES_PER_SECOND }, Direction::TowardUpstream)
        .await?;
    run.phase("outage", "the link from orders to RabbitMQ carries 8 kB a second");
    let accepted = run.accepted_meanwhile().await;
    let waits = run
        .felt("events wait in the outbox", async || {
            let pending = run.system.metric("orders", "outbox_pending").await?;
            Ok((pending > f64::from(run.rate)).then(|| format!("{pending} events wait in the outbox")))
        })
        .await;
    run.proxies()?.clear(&route).await?;
    let summary = run.end(load).await?;
    run.report(vec![accepted, waits], summary, Refusals::BreakTheClaim).await
}
