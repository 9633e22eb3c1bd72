//! A queue of our own on the exchange: everything that is published, copies included, in the order in which the broker
//! got it.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::TestVhost;
use uuid::Uuid;

/// How many messages are taken at a time.
const CHUNK: usize = 2_000;

/// What has been published so far.
#[derive(Debug)]
pub struct Tap {
    client: reqwest::Client,
    queue_url: String,
    seen: HashSet<Uuid>,
    last: HashMap<Uuid, i64>,
    published: Published,
}

/// The sum of it.
#[derive(Clone, Debug, Default)]
pub struct Published {
    /// Messages.
    pub messages: u64,
    /// Of these, second, third, … copies of an event.
    pub copies: u64,
    /// First copies that came before the first copy of an older event of their order, or that left one out.
    pub out_of_order: Vec<String>,
}

#[derive(Deserialize)]
struct Seen {
    id: Uuid,
    subject: Uuid,
    sequence: i64,
}

impl Tap {
    /// Listens from now on. The exchange has to be there.
    ///
    /// # Errors
    /// When the broker's HTTP API does not do as it is asked.
    pub async fn on(vhost: &TestVhost) -> Result<Self> {
        // A request that hangs is given up, and made again by whoever waits.
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
        let (api, name) = (vhost.api_url(), vhost.name());
        let queue_url = format!("{api}/api/queues/{name}/tap");
        let binding_url = format!("{api}/api/bindings/{name}/e/shop.events/q/tap");
        for (request, body) in [
            (client.put(&queue_url), json!({ "durable": true })),
            (client.post(binding_url), json!({ "routing_key": "#" })),
        ] {
            let answer = request.json(&body).send().await?;
            ensure!(answer.status().is_success(), "the broker's API answered {}", answer.status());
        }
        Ok(Self {
            client,
            queue_url,
            seen: HashSet::new(),
            last: HashMap::new(),
            published: Published::default(),
        })
    }

    /// Takes what has arrived since the last time.
    ///
    /// # Errors
    /// As above.
    pub async fn drain(&mut self) -> Result<&Published> {
        loop {
            let get = json!({ "count": CHUNK, "ackmode": "ack_requeue_false", "encoding": "auto" });
            let answer = self.client.post(format!("{}/get", self.queue_url)).json(&get).send().await?;
            let messages: Vec<Value> = answer.error_for_status()?.json().await?;
            let whole = messages.len() == CHUNK;
            for message in messages {
                let payload = message["payload"].as_str().context("a message without a payload")?;
                self.note(&serde_json::from_str(payload)?);
            }
            if !whole {
                return Ok(&self.published);
            }
        }
    }

    fn note(&mut self, event: &Seen) {
        self.published.messages += 1;
        if !self.seen.insert(event.id) {
            self.published.copies += 1;
            return;
        }
        let last = self.last.insert(event.subject, event.sequence).unwrap_or(0);
        if event.sequence != last + 1 {
            let Seen { subject, sequence, .. } = event;
            self.published.out_of_order.push(format!("{subject}: {sequence} after {last}"));
        }
    }
}
