//! The broker's HTTP API: what an operator of RabbitMQ can see and destroy.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use reqwest::Url;
use serde_json::{Value, json};
use testbed::eventually;
use uuid::Uuid;

use super::CONDITION_DEADLINE;
use crate::part::count_queued;

const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// The bindings of the three queues to the exchange of events: 6 of orders, 2 of inventory, 3 of billing.
const BINDINGS: usize = 10;

/// Each service opens at least one connection for each of these.
const ROLES: [&str; 3] = ["publisher", "consumer", "collector"];
const SERVICES: usize = 3;

/// The user that [`BrokerApi::create_operator`] creates.
const OPERATOR: &str = "operator";

/// Access to the virtual host `shop` of a broker, or to another one.
#[derive(Clone, Debug)]
pub struct BrokerApi {
    client: reqwest::Client,
    /// With a user and its password.
    url: String,
    vhost: String,
    /// The password of that user, which is also the services' user.
    password: String,
}

impl BrokerApi {
    /// By the URL of the API, with a user and its password, and the name of a virtual host.
    ///
    /// # Errors
    /// When the URL is invalid, or no HTTP client can be built.
    pub fn new(url: impl Into<String>, vhost: impl Into<String>) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(REQUEST_DEADLINE).build()?;
        let url: String = url.into();
        let password = Url::parse(&url)?.password().unwrap_or_default().to_owned();
        Ok(Self { client, url, vhost: vhost.into(), password })
    }

    /// Creates an administrator, and uses it from now on: it stays one whatever happens to the services' user.
    pub async fn create_operator(&mut self) -> Result<()> {
        let password = Uuid::new_v4().simple().to_string();
        // `impersonator`: it publishes copies of the services' messages, which have their login in `user_id`.
        let operator = json!({ "password": password, "tags": "administrator,impersonator" });
        self.put(&format!("users/{OPERATOR}"), &operator).await?;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.put(&format!("permissions/{}/{OPERATOR}", self.vhost), &all).await?;
        let (_, address) = self.url.split_once('@').context("the URL has no user")?;
        self.url = format!("http://{OPERATOR}:{password}@{address}");
        Ok(())
    }

    /// Creates a user without administrator rights, or gives it another password. Open connections stay open.
    pub async fn set_user(&self, name: &str, password: &str) -> Result<()> {
        self.put(&format!("users/{name}"), &json!({ "password": password, "tags": "" })).await?;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.put(&format!("permissions/{}/{name}", self.vhost), &all).await
    }

    /// Gives the services' user another password. Open connections stay open: see [`close_connections`](Self::close_connections).
    pub async fn change_password(&self) -> Result<()> {
        self.set_password("another").await
    }

    /// Undoes [`change_password`](Self::change_password).
    pub async fn restore_password(&self) -> Result<()> {
        self.set_password(&self.password).await
    }

    async fn set_password(&self, password: &str) -> Result<()> {
        self.put("users/shop", &json!({ "password": password, "tags": "administrator" })).await
    }

    /// Creates or changes what a path names.
    pub async fn put(&self, path: &str, body: &Value) -> Result<()> {
        self.client.put(self.address(path)).json(body).send().await?.error_for_status()?;
        Ok(())
    }

    /// Deletes what a path names, such as `exchanges/shop/shop.events`.
    pub async fn delete(&self, path: &str) -> Result<()> {
        self.client.delete(self.address(path)).send().await?.error_for_status()?;
        Ok(())
    }

    /// Removes the messages of a queue that no consumer holds.
    pub async fn purge(&self, queue: &str) -> Result<()> {
        self.delete(&format!("queues/{}/{queue}/contents", self.vhost)).await
    }

    async fn list(&self, path: &str) -> Result<Vec<Value>> {
        Ok(self.client.get(self.address(path)).send().await?.error_for_status()?.json().await?)
    }

    /// The bindings of the services' queues to the exchange of events. A tap's binding is not one of them.
    async fn bindings(&self) -> Result<Vec<Value>> {
        let mut bindings =
            self.list(&format!("exchanges/{}/shop.events/bindings/source", self.vhost)).await?;
        bindings.retain(|binding| {
            binding["destination"].as_str().is_some_and(|queue| queue.ends_with(".events"))
        });
        Ok(bindings)
    }

    /// Deletes all bindings to the exchange of events. Every relay restores them every few seconds: the caller freezes
    /// the services meanwhile.
    pub async fn delete_bindings(&self) -> Result<()> {
        let bindings = self.bindings().await?;
        ensure!(bindings.len() == BINDINGS, "{} bindings instead of {BINDINGS}", bindings.len());
        for binding in bindings {
            let field = |name: &str| binding[name].as_str().unwrap_or_default().to_owned();
            let (queue, key) = (field("destination"), field("properties_key"));
            self.delete(&format!("bindings/{}/e/shop.events/q/{queue}/{key}", self.vhost)).await?;
        }
        let left = self.bindings().await?;
        ensure!(left.is_empty(), "bindings are left: {left:?}");
        Ok(())
    }

    /// Waits until all bindings exist.
    pub async fn await_bindings(&self) -> Result<()> {
        eventually("all bindings to be restored", CONDITION_DEADLINE, async || {
            let bindings = self.bindings().await?.len();
            ensure!(bindings == BINDINGS, "{bindings} bindings");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until the broker lists each kind of connection of each service. The list is seconds old.
    pub async fn await_connections(&self) -> Result<()> {
        eventually("all services to be connected", CONDITION_DEADLINE, async || {
            let open = self.list("connections").await?;
            let mut kinds: Vec<_> =
                open.iter().map(|connection| connection["user_provided_name"].to_string()).collect();
            kinds.sort_unstable();
            kinds.dedup();
            ensure!(kinds.len() >= SERVICES * ROLES.len(), "connected only {kinds:?}");
            Ok(Some(()))
        })
        .await
    }

    /// Closes all connections, as an operator can, until none is listed that was opened before. Returns how many.
    pub async fn close_connections(&self) -> Result<usize> {
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
        let mut closed = std::collections::HashSet::new();
        eventually("all connections to be closed", CONDITION_DEADLINE, async || {
            let mut old = self.list("connections").await?;
            old.retain(|open| u128::from(open["connected_at"].as_u64().unwrap_or_default()) <= began);
            for connection in &old {
                let name = connection["name"].as_str().unwrap_or_default();
                let path = name.replace(' ', "%20").replace('>', "%3E");
                // It may be closed already.
                self.client.delete(self.address(&format!("connections/{path}"))).send().await?;
                closed.insert(name.to_owned());
            }
            Ok(old.is_empty().then_some(()))
        })
        .await?;
        Ok(closed.len())
    }

    /// Publishes a message into one queue.
    pub async fn publish(&self, queue: &str, payload: &str, message_id: &str) -> Result<()> {
        let properties = json!({ "message_id": message_id, "delivery_mode": 2, "user_id": "shop" });
        self.publish_as("amq.default", queue, payload, &properties).await
    }

    /// Publishes a message with given properties. It must reach a queue.
    pub async fn publish_as(
        &self,
        exchange: &str,
        routing_key: &str,
        payload: &str,
        properties: &Value,
    ) -> Result<()> {
        let message = json!({
            "routing_key": routing_key, "payload": payload, "payload_encoding": "string", "properties": properties,
        });
        self.publish_message(exchange, message.to_string()).await.with_context(|| format!("to {routing_key}"))
    }

    /// Publishes a message in the form in which the API takes it. It must reach a queue.
    pub async fn publish_message(&self, exchange: &str, message: String) -> Result<()> {
        let url = self.address(&format!("exchanges/{}/{exchange}/publish", self.vhost));
        let request = self.client.post(url).header("content-type", "application/json").body(message);
        let answer: Value = request.send().await?.error_for_status()?.json().await?;
        ensure!(answer["routed"] == true, "a message reached no queue");
        Ok(())
    }

    /// Declares a queue that receives all events that are published from now on. The exchange must exist.
    pub async fn declare_tap(&self, queue: &str) -> Result<()> {
        self.declare_subscriber(queue, "*.*", &json!({})).await
    }

    /// Declares a queue with these arguments that receives the events with one routing key from now on.
    pub(crate) async fn declare_subscriber(&self, queue: &str, key: &str, arguments: &Value) -> Result<()> {
        let declared = json!({ "durable": true, "arguments": arguments });
        self.put(&format!("queues/{}/{queue}", self.vhost), &declared).await?;
        let url = self.address(&format!("bindings/{}/e/shop.events/q/{queue}", self.vhost));
        self.client.post(url).json(&json!({ "routing_key": key })).send().await?.error_for_status()?;
        Ok(())
    }

    /// Whether a queue is bound to the exchange of events with this key.
    pub(crate) async fn is_bound(&self, queue: &str, key: &str) -> Result<bool> {
        let bindings = self.list(&format!("bindings/{}/e/shop.events/q/{queue}", self.vhost)).await?;
        Ok(bindings.iter().any(|binding| binding["routing_key"] == key))
    }

    /// Deletes a queue of the virtual host.
    pub(crate) async fn delete_queue(&self, queue: &str) -> Result<()> {
        self.delete(&format!("queues/{}/{queue}", self.vhost)).await
    }

    /// Whether the API answers for this user. A test's broker may have none.
    pub(crate) async fn is_there(&self) -> bool {
        self.list(&format!("queues/{}", self.vhost)).await.is_ok()
    }

    /// Takes up to so many messages out of a queue.
    pub async fn take(&self, queue: &str, count: usize) -> Result<Vec<Value>> {
        let get = json!({ "count": count, "ackmode": "ack_requeue_false", "encoding": "auto" });
        let url = self.address(&format!("queues/{}/{queue}/get", self.vhost));
        Ok(self.client.post(url).json(&get).send().await?.error_for_status()?.json().await?)
    }

    /// How many messages are in the services' queues, by statistics that are seconds old: ready, or held by a consumer.
    pub(crate) async fn queued(&self) -> Result<u64> {
        let queues = self.list(&format!("queues/{}", self.vhost)).await?;
        count_queued(queues.iter().map(|queue| {
            let running = queue["state"] == "running";
            (queue["name"].as_str().unwrap_or_default(), queue["messages"].as_u64().filter(|_| running))
        }))
    }

    /// How many messages a queue holds, by statistics that are seconds old.
    pub async fn depth(&self, queue: &str) -> Result<u64> {
        let url = self.address(&format!("queues/{}/{queue}", self.vhost));
        let queue: Value = self.client.get(url).send().await?.error_for_status()?.json().await?;
        queue["messages"].as_u64().context("the broker has no statistics of the queue yet")
    }

    fn address(&self, path: &str) -> String {
        format!("{}/api/{path}", self.url)
    }
}
