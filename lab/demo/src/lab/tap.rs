//! A queue that receives everything that is published, copies included, in the order in which the broker received it.

use std::{collections::HashMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::TestVhost;
use uuid::Uuid;

/// How many messages one request takes from the queue.
const MAX_MESSAGES: usize = 2_000;

const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// The queue, and what came out of it.
#[derive(Debug)]
pub struct Tap {
    client: reqwest::Client,
    queue_url: String,
    /// How often each event was published.
    times: HashMap<Uuid, u64>,
    last: HashMap<Uuid, i64>,
    published: Published,
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
    pub async fn on(vhost: &TestVhost) -> Result<Self> {
        Self::at(vhost.api_url(), vhost.name()).await
    }

    /// Like [`on`](Self::on), by the URL of the broker's HTTP API and the name of a virtual host.
    ///
    /// # Errors
    /// When the broker's HTTP API refuses.
    pub async fn at(api: &str, name: &str) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(REQUEST_DEADLINE).build()?;
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
            times: HashMap::new(),
            last: HashMap::new(),
            published: Published::default(),
        })
    }

    /// Takes what has arrived since the last call.
    ///
    /// # Errors
    /// When the broker's HTTP API refuses.
    pub async fn drain(&mut self) -> Result<&Published> {
        loop {
            let get = json!({ "count": MAX_MESSAGES, "ackmode": "ack_requeue_false", "encoding": "auto" });
            let answer = self.client.post(format!("{}/get", self.queue_url)).json(&get).send().await?;
            let messages: Vec<Value> = answer.error_for_status()?.json().await?;
            let is_last = messages.len() < MAX_MESSAGES;
            for message in messages {
                let payload = message["payload"].as_str().context("a message has no payload")?;
                self.record(&serde_json::from_str(payload)?);
            }
            if is_last {
                return Ok(&self.published);
            }
        }
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
