//! A queue for `OrderConfirmed`, which no service consumes: only a subscriber can tell that all of them were published.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::eventually;
use uuid::Uuid;

use crate::lab::BrokerApi;
use crate::running_system::RunningSystem;

const QUEUE: &str = "drill.confirmations";
const KEY: &str = "order.confirmed";
const MAX_MESSAGES: usize = 500;
const READ_DEADLINE: Duration = Duration::from_secs(60);
/// After a drill that was killed, the broker deletes the queue.
const EXPIRES_MS: u32 = 3_600_000;

/// The queue, bound since the beginning of a drill.
pub(super) struct Confirmations {
    api: BrokerApi,
    /// By the database's clock. Older events may have been published before.
    since: String,
}

impl Confirmations {
    /// Declares the queue. `None`: the system's broker has no address for operators.
    pub(super) async fn on(system: &RunningSystem) -> Result<Option<Self>> {
        let Ok(api) = system.broker_api() else { return Ok(None) };
        if !api.is_there().await {
            return Ok(None);
        }
        let arguments = json!({ "x-queue-type": "quorum", "x-expires": EXPIRES_MS });
        api.declare_subscriber(QUEUE, KEY, &arguments).await?;
        api.purge(QUEUE).await?;
        let since = system.read("select clock_timestamp()::text").await?;
        Ok(Some(Self { api, since: since.trim().to_owned() }))
    }

    /// Compares by id what was published with what arrived, and deletes the queue. Returns in words what was seen, and whether
    /// all has arrived. `None`: the queue is gone, or has lost its binding with its exchange.
    pub(super) async fn compare(self, system: &RunningSystem) -> Result<Option<(String, bool)>> {
        let published = format!(
            "select coalesce(json_agg(event_id), '[]')::text from orders.outbox
             where event_type = 'OrderConfirmed' and published_at is not null and created_at > '{}'",
            self.since
        );
        let published: HashSet<Uuid> = serde_json::from_str(&system.read(&published).await?)?;
        if !self.api.is_bound(QUEUE, KEY).await? {
            // It may be there. Otherwise the broker deletes it.
            let _ = self.api.delete_queue(QUEUE).await;
            return Ok(None);
        }
        let (mut arrived, mut was_read) = (HashSet::new(), false);
        // All were confirmed, so they are in the queue. A node that was started again needs some time to give them.
        eventually("the confirmations to be read", READ_DEADLINE, async || {
            loop {
                let messages = self.api.take(QUEUE, MAX_MESSAGES).await?;
                let is_last = messages.is_empty();
                for message in messages {
                    let id = message["properties"]["message_id"].as_str().and_then(|id| id.parse().ok());
                    arrived.insert(id.context("a message has no id")?);
                }
                if is_last {
                    was_read = true;
                    ensure!(published.is_subset(&arrived), "some have not arrived");
                    return Ok(Some(()));
                }
            }
        })
        .await
        .or_else(|error| if was_read { Ok(()) } else { Err(error) })?;
        let missing = published.difference(&arrived).count();
        let left = if missing > 0 { self.api.depth(QUEUE).await? } else { 0 };
        ensure!(left == 0, "{left} messages are in the queue, and the broker does not deliver them");
        // Otherwise the broker deletes it.
        let _ = self.api.delete_queue(QUEUE).await;
        let what = format!("{} OrderConfirmed published, {missing} of them never arrived", published.len());
        Ok(Some((what, missing == 0)))
    }
}
