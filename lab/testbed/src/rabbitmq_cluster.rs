//! A RabbitMQ cluster: nodes as processes of this machine, which share one name server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::eventually::eventually_send;
use crate::home::Home;
use crate::rabbitmq::{Membership, REQUEST_TIMEOUT, Rabbitmq};

/// A node that was away copies what it has missed.
const JOIN_DEADLINE: Duration = Duration::from_secs(120);
/// The cookie of a node that is cut off.
const CUT: &str = "cut";

/// A RabbitMQ cluster. A single broker is a cluster of one node.
#[derive(Debug)]
pub struct RabbitmqCluster {
    nodes: Vec<Rabbitmq>,
    membership: Membership,
}

/// The nodes that have a replica of a quorum queue, by their numbers, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMembers {
    pub leader: usize,
    /// How many nodes have a replica.
    pub members: usize,
    /// How many of them are up and in contact with each other.
    pub online: usize,
}

impl RabbitmqCluster {
    /// Starts a cluster, and waits until all nodes have joined it.
    pub async fn start(home: Home, nodes: usize) -> Result<Self> {
        ensure!(
            nodes == 1 || home == Home::Local,
            "a cluster runs from this machine's binaries only (`--with local`); compose.cluster.yaml has one of containers"
        );
        let membership = Membership::new(nodes)?;
        let first = Rabbitmq::start_node(home, &membership, 0).await?;
        let mut cluster = Self { nodes: vec![first], membership };
        // One after the other: nodes that start together may form two clusters.
        for index in 1..nodes {
            cluster.nodes.push(Rabbitmq::start_node(home, &cluster.membership, index).await?);
        }
        Ok(cluster)
    }

    /// The AMQP URL with all nodes and the virtual host `shop`.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(Rabbitmq::address).collect();
        self.first().url().replacen(&addresses[0], &addresses.join(","), 1)
    }

    pub fn first(&self) -> &Rabbitmq {
        &self.nodes[0]
    }

    /// The node with this number, from 1.
    pub fn node(&self, number: usize) -> Result<&Rabbitmq> {
        let node = number.checked_sub(1).and_then(|index| self.nodes.get(index));
        node.with_context(|| format!("the broker has no node {number}"))
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The members of a quorum queue of the virtual host `shop`, as the node sees them that is in contact with the most: one that
    /// is cut off may still take itself for the leader.
    pub async fn members(&self, queue: &str) -> Result<QueueMembers> {
        let mut seen = vec![];
        for node in &self.nodes {
            let url = format!("{}/api/queues/shop/{queue}", node.api_url());
            seen.extend(self.read_members(&url).await.ok());
        }
        let most = seen.into_iter().max_by_key(|members| members.online);
        most.with_context(|| format!("no node knows the members of {queue}"))
    }

    async fn read_members(&self, url: &str) -> Result<QueueMembers> {
        let response = reqwest::Client::new().get(url).timeout(REQUEST_TIMEOUT).send().await?;
        let queue: Value = serde_json::from_str(&response.error_for_status()?.text().await?)?;
        let count = |field: &str| queue[field].as_array().map_or(0, Vec::len);
        let leader = queue["leader"].as_str().context("the queue has no leader")?;
        let number = self.nodes.iter().position(|node| node.name() == leader);
        let leader = number.with_context(|| format!("{leader} is no node of this cluster"))? + 1;
        Ok(QueueMembers { leader, members: count("members"), online: count("online") })
    }

    /// Waits until every node has a replica of these queues, and all replicas are online.
    pub async fn wait_complete(&self, queues: &[&str]) -> Result<()> {
        let all = self.count();
        for queue in queues {
            eventually_send(&format!("{all} members of {queue} to be online"), JOIN_DEADLINE, || async {
                let members = self.members(queue).await?;
                ensure!(members.members == all && members.online == all, "{members:?}");
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Cuts a node off from the others, as a network partition does: it changes the password that nodes need for each other, and
    /// closes the connections between them.
    pub async fn cut_off(&self, number: usize) -> Result<()> {
        let cut = format!("erlang:set_cookie(node(), {CUT}), [erlang:disconnect_node(N) || N <- nodes()].");
        let cut_off = self.node(number)?.rabbitmqctl(&["eval", &cut]).await;
        cut_off.with_context(|| format!("failed to cut off node {number}"))
    }

    /// Undoes [`cut_off`](Self::cut_off).
    pub async fn reconnect(&self, number: usize) -> Result<()> {
        let heal = format!("erlang:set_cookie(node(), '{}').", self.membership.cookie);
        let reconnected = self.node(number)?.rabbitmqctl(&["--erlang-cookie", CUT, "eval", &heal]).await;
        reconnected.with_context(|| format!("failed to reconnect node {number}"))
    }

    /// Restarts a node as an operator does for an upgrade: waits until its loss would leave a majority of each queue, moves leaders
    /// and clients away from it, stops it, and starts it again.
    pub async fn restart_in_order(&self, number: usize) -> Result<()> {
        let node = self.node(number)?;
        node.run_tool("rabbitmq-upgrade", &["await_online_quorum_plus_one", "-t", "50"]).await?;
        node.run_tool("rabbitmq-upgrade", &["drain"]).await?;
        node.stop().await?;
        node.start().await?;
        node.run_tool("rabbitmq-upgrade", &["revive"]).await
    }
}
