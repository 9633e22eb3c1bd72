//! Packets that vanish, in one direction or in both, and servers that one service cannot reach.

use std::time::Duration;

use anyhow::Result;
use fault_proxy::{Direction, Effect};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Refusals, Report};
use crate::own_system::{broker_route, database_route};

pub(in crate::drills) const ONE_WAY: Drill = Drill {
    name: "one-way-black-hole",
    group: Group::Network,
    teaches: "A half-open connection is the worst one: everything that is sent arrives, and no answer comes back.",
    question: "The relay's messages reach RabbitMQ, and nothing comes back. What does the relay do with them?",
    claim: "While no confirm comes back, orders are accepted and nothing counts as published. Copies change nothing.",
    outage: Duration::from_secs(15),
    system: Subject::Proxied,
    run: |run| Box::pin(one_way(run)),
};

pub(in crate::drills) const BROKER_AWAY: Drill = Drill {
    name: "broker-unreachable-for-one",
    group: Group::Network,
    teaches: "A queue decouples: a consumer that cannot reach the broker delays itself and no other service.",
    question: "Billing alone cannot reach RabbitMQ. What can a customer do meanwhile, and what does inventory do?",
    claim: "While billing cannot reach RabbitMQ, orders are accepted and inventory goes on. Billing catches up by itself.",
    outage: Duration::from_secs(10),
    system: Subject::Proxied,
    run: |run| Box::pin(broker_away(run)),
};

pub(in crate::drills) const DATABASE_AWAY: Drill = Drill {
    name: "database-unreachable-for-one",
    group: Group::Database,
    teaches: "A consumer without its database must not use up the attempts of its messages: a temporary failure sets nothing aside.",
    question: "Inventory's database is away for ten seconds, and its messages keep coming. Which of them are lost?",
    claim: "While inventory's database is away, nothing is set aside and no attempt is used up. Inventory catches up by itself.",
    outage: Duration::from_secs(10),
    system: Subject::Proxied,
    run: |run| Box::pin(database_away(run)),
};

async fn one_way(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, broker_route("orders"));
    run.proxies()?.set(&route, Effect::BlackHole, Direction::TowardClient).await?;
    run.phase("outage", "RabbitMQ hears orders; orders hears nothing");
    let accepted = run.accepted_meanwhile().await;
    let noticed = run.lost_connection("orders", "publisher").await;
    run.proxies()?.clear(&route).await?;
    let summary = run.end(load).await?;
    run.report(vec![accepted, noticed], summary, Refusals::BreakTheClaim).await
}

async fn broker_away(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, broker_route("billing"));
    run.proxies()?.set(&route, Effect::Cut, Direction::Both).await?;
    run.phase("outage", "cut all connections of billing to RabbitMQ, and refuse new ones");
    let noticed = run.lost_connection("billing", "consumer").await;
    let before = run.system.metric("inventory", "inbox_applied_total").await?;
    let accepted = run.accepted_meanwhile().await;
    let goes_on = run
        .felt("inventory applies events meanwhile", async || {
            let applied = run.system.metric("inventory", "inbox_applied_total").await? - before;
            Ok((applied > 0.0).then(|| format!("inventory applied {applied} events meanwhile")))
        })
        .await;
    run.proxies()?.clear(&route).await?;
    let summary = run.end(load).await?;
    run.report(vec![noticed, accepted, goes_on], summary, Refusals::BreakTheClaim).await
}

async fn database_away(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, database_route("inventory"));
    let before = run.proxies()?.stats(&route).await?.refused;
    run.proxies()?.set(&route, Effect::Cut, Direction::Both).await?;
    run.phase("outage", "cut all connections of inventory to PostgreSQL, and refuse new ones");
    let refused = run
        .felt("inventory tries to connect in vain", async || {
            let refused = run.proxies()?.stats(&route).await?.refused - before;
            Ok((refused > 0).then(|| format!("{refused} connections of inventory were refused")))
        })
        .await;
    let accepted = run.accepted_meanwhile().await;
    run.proxies()?.clear(&route).await?;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![refused, accepted], summary, Refusals::BreakTheClaim).await?;
    let aside = report.reconciliation.set_aside.iter().map(|group| group.count).sum::<u64>();
    if aside > 0 {
        report.refute(format!("{aside} events were set aside for a failure that was temporary"));
    }
    Ok(report)
}
