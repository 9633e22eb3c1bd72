//! A queue that receives everything that is published, copies included, in the order in which the broker received it.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::broker_api::BrokerApi;

/// How many messages one request takes from the queue.
const MAX_MESSAGES: usize = 2_000;

const QUEUE: &str = "tap";
/// How many of the last messages are kept.
const RECENT: usize = 100;

/// The queue, and what came out of it.
#[derive(Debug)]
pub struct Tap {
    api: BrokerApi,
    /// How often each event was published.
    times: HashMap<Uuid, u64>,
    last: HashMap<Uuid, i64>,
    published: Published,
    /// The last messages, as the broker's API returned them.
    recent: VecDeque<Value>,
}

/// What has been published so far.
#[derive(Clone, Debug, Default)]
pub struct Published {
    pub messages: u64,
    /// Messages that are a second or later copy of an event.
    pub copies: u64,
    /// The most such copies of one event.
    pub most_copies: u64,
    /// First copies whose sequence does not follow the one before in their order: an event was overtaken, or is
    /// missing.
    pub out_of_order: Vec<String>,
}

#[derive(Deserialize)]
struct Seen {
    id: Uuid,
    subject: Uuid,
    sequence: i64,
}

impl Tap {
    /// Declares and binds the queue. It receives what is published from now on. The exchange has to exist.
    ///
    /// # Errors
    /// When the broker's HTTP API refuses.
    pub async fn on(api: BrokerApi) -> Result<Self> {
        api.declare_tap(QUEUE).await?;
        Ok(Self {
            api,
            times: HashMap::new(),
            last: HashMap::new(),
            published: Published::default(),
            recent: VecDeque::new(),
        })
    }

    /// Takes what has arrived since the last call.
    ///
    /// # Errors
    /// When the broker's HTTP API refuses.
    pub async fn drain(&mut self) -> Result<&Published> {
        loop {
            let messages = self.api.take(QUEUE, MAX_MESSAGES).await?;
            let is_last = messages.len() < MAX_MESSAGES;
            for message in messages {
                let payload = message["payload"].as_str().context("a message has no payload")?;
                self.record(&serde_json::from_str(payload)?);
                if self.recent.len() == RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back(message);
            }
            if is_last {
                return Ok(&self.published);
            }
        }
    }

    /// The last messages that were taken, with their keys and properties.
    pub(crate) fn recent(&self) -> Vec<Value> {
        self.recent.iter().cloned().collect()
    }

    fn record(&mut self, event: &Seen) {
        self.published.messages += 1;
        let times = self.times.entry(event.id).or_default();
        *times += 1;
        if *times > 1 {
            self.published.copies += 1;
            self.published.most_copies = self.published.most_copies.max(*times - 1);
            return;
        }
        let last = self.last.insert(event.subject, event.sequence).unwrap_or(0);
        if event.sequence != last + 1 {
            let Seen { subject, sequence, .. } = event;
            self.published.out_of_order.push(format!("{subject}: {sequence} after {last}"));
        }
    }
}
