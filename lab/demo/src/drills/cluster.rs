//! What happens to a RabbitMQ cluster of three nodes. Each drill checks first that every queue has three members: with fewer,
//! nothing would be proven.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use testbed::RabbitmqCluster;
use tokio::time::sleep;

use super::at_end::no_order_failed;
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use crate::fault::Fault;
use crate::own_system::OwnSystem;
use crate::part::{NODES, SERVICES};

pub(super) static DRILLS: [Drill; 4] = [
    Drill {
        name: "broker-leader-killed",
        teaches: "What was confirmed is on a majority of nodes. Who publishes must find another node by itself.",
        question: "The node that leads inventory's queue is killed under load. Who confirms the next event, and when?",
        claim: "Orders are accepted all the time. Within five seconds events are published again, another node leads \
                the queue, and nothing that was confirmed is lost.",
        steps: Some(|run| Box::pin(kill_leader(run))),
        ..ROW
    },
    Drill {
        name: "broker-node-cut-off",
        teaches: "A node without a majority serves nobody, so there are never two histories.",
        question: "The node that leads inventory's queue cannot reach the others, and its clients can reach it. What \
                   does it confirm?",
        claim: "Orders are accepted all the time. The node that is cut off serves no client, the others go on, and it \
                copies what it has missed when it is back.",
        steps: Some(|run| Box::pin(cut_off_leader(run))),
        ..ROW
    },
    Drill {
        name: "broker-majority-lost",
        teaches: "Without a majority a cluster is safe and unavailable. The outbox is why orders are accepted all the \
                  same.",
        question: "Two of three nodes are killed. What does the third confirm, and what can a customer do meanwhile?",
        claim: "Orders are accepted while two of three nodes are down, and no event counts as published. Everything \
                arrives once when they are back.",
        outage: Duration::from_secs(20),
        steps: Some(|run| Box::pin(kill_majority(run))),
        ..ROW
    },
    Drill {
        name: "broker-rolling-upgrade",
        teaches: "Drain a node before you stop it: clients and leaders move, and each queue keeps its majority.",
        question: "All three nodes are restarted under load, one after the other. How many orders fail?",
        claim: "No order fails while each of three nodes is drained, stopped and started again, and everything arrives \
                once.",
        steps: Some(|run| Box::pin(restart_all(run))),
        at_end: &[no_order_failed],
        ..ROW
    },
];

const ROW: Drill = Drill {
    group: Group::Broker,
    system: Subject::Own(|| OwnSystem { cluster: true, ..OwnSystem::default() }),
    ..Drill::ROW
};

const INVENTORY: &str = "inventory.events";
const QUEUES: [&str; 3] = ["orders.events", INVENTORY, "billing.events"];

/// How long nothing may be published after a leader was killed.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// What was confirmed before a fault is marked as published within this time.
const IN_FLIGHT: Duration = Duration::from_secs(2);

async fn kill_leader(run: &DrillRun<'_>) -> Result<()> {
    let (cluster, leader) = complete_cluster(run).await?;
    let (from, fault) = (SystemTime::now(), Fault::Kill(NODES[leader - 1]));
    let killed = run.inject(&fault).await?;
    another_leads(run, cluster, leader).await;
    run.accepted_meanwhile().await;
    run.repair(killed).await?;
    let pause = recover(run, from).await?;
    run.promised("events were published again within five seconds", pause < MAX_PAUSE);
    Ok(())
}

async fn cut_off_leader(run: &DrillRun<'_>) -> Result<()> {
    let (cluster, leader) = complete_cluster(run).await?;
    let (from, fault) = (SystemTime::now(), Fault::CutOff(leader));
    let cut_off = run.inject(&fault).await?;
    another_leads(run, cluster, leader).await;
    let (node, sign) = (cluster.node(leader)?, format!("node {leader} serves no client"));
    run.until_injected(&sign, async || Ok(!node.answers().await)).await;
    run.accepted_meanwhile().await;
    run.repair(cut_off).await?;
    recover(run, from).await.map(drop)
}

async fn kill_majority(run: &DrillRun<'_>) -> Result<()> {
    complete_cluster(run).await?;
    let from = SystemTime::now();
    let second = run.inject(&Fault::Kill(NODES[1])).await?;
    let third = run.inject(&Fault::Kill(NODES[2])).await?;
    sleep(IN_FLIGHT).await;
    let alone = SystemTime::now();
    run.accepted_meanwhile().await;
    let published: u64 = run.system.number(&published_since(alone)).await?;
    run.promised(format!("{published} events were published without a majority"), published == 0);
    run.repair(third).await?;
    run.repair(second).await?;
    recover(run, from).await.map(drop)
}

async fn restart_all(run: &DrillRun<'_>) -> Result<()> {
    let (cluster, _) = complete_cluster(run).await?;
    let from = SystemTime::now();
    for (index, part) in NODES.iter().enumerate() {
        let before = run.system.pid(part).await?;
        cluster.restart_in_order(index + 1).await?;
        cluster.wait_complete(&QUEUES).await?;
        let after = run.system.pid(part).await?;
        run.phase("restart", format!("node {} was drained and restarted, and has joined again", index + 1));
        run.injected(
            format!("node {} runs as another process", index + 1),
            after.is_some() && after != before,
        );
    }
    recover(run, from).await.map(drop)
}

/// Requires that each queue has three members, all online. Returns the cluster and the leader of inventory's queue.
async fn complete_cluster<'a>(run: &DrillRun<'a>) -> Result<(&'a RabbitmqCluster, usize)> {
    let cluster = run.system.own()?.rabbitmq;
    let complete = cluster.wait_complete(&QUEUES).await;
    run.injected("each of three queues has three members, and all are online", complete.is_ok());
    let leader = cluster.members(INVENTORY).await?.leader;
    run.phase("cluster", format!("node {leader} of three leads inventory's queue"));
    Ok((cluster, leader))
}

async fn another_leads(run: &DrillRun<'_>, cluster: &RabbitmqCluster, leader: usize) {
    run.until_promised("another node leads inventory's queue", async || {
        Ok(cluster.members(INVENTORY).await?.leader != leader)
    })
    .await;
}

/// Waits until all members of all queues are online again, ends the load, and records the longest time since `from` in which
/// the order service has published nothing.
async fn recover(run: &DrillRun<'_>, from: SystemTime) -> Result<Duration> {
    let complete = run.system.own()?.rabbitmq.wait_complete(&QUEUES).await;
    run.injected("all members of all queues are online again", complete.is_ok());
    run.end().await?;
    let pause = Duration::from_secs_f64(run.system.number(&longest_pause(from)).await?);
    run.recovered_in(pause);
    let mut recreated = 0.0;
    for service in SERVICES {
        recreated += run.system.metric(service, "broker_queues_recreated_total").await?;
    }
    run.promised(format!("{recreated} queues were found missing and made again"), recreated == 0.0);
    Ok(pause)
}

fn published_since(from: SystemTime) -> String {
    let from = epoch(from);
    format!(
        "select count(*)::text
         from (select published_at from orders.outbox union all select published_at from inventory.outbox
               union all select published_at from billing.outbox) event
         where published_at > to_timestamp({from})"
    )
}

fn longest_pause(from: SystemTime) -> String {
    let from = epoch(from);
    format!(
        "select coalesce(max(extract(epoch from published_at - before)), 0)::text
         from (select published_at, lag(published_at) over (order by published_at) as before from orders.outbox) event
         where published_at > to_timestamp({from})"
    )
}

/// Seconds since 1970.
fn epoch(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
