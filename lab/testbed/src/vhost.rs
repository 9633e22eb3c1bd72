//! A virtual host for one test.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use uuid::Uuid;

use crate::async_drop::block_on_cleanup;
use crate::shared_servers;

/// RabbitMQ starts some twenty processes for a virtual host, and other tests may be creating some at the same time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A RabbitMQ virtual host for one test: it shares no exchange, queue or message with any other. When the value is
/// dropped, the virtual host is deleted, unless the broker does not answer.
#[derive(Debug)]
pub struct TestVhost {
    name: String,
    amqp: String,
    api: String,
}

/// Creates an empty virtual host on the shared broker.
pub async fn vhost() -> Result<TestVhost> {
    let (amqp, api) = shared_servers::rabbitmq().await?;
    vhost_on(amqp, api).await
}

/// Creates an empty virtual host on a broker, by its AMQP URL without one and the URL of its management API.
pub async fn vhost_on(amqp: String, api: String) -> Result<TestVhost> {
    let name = format!("test-{}", Uuid::now_v7().simple());
    let vhost = TestVhost { name, amqp, api };
    vhost.set(&format!("vhosts/{}", vhost.name), Some("{}".to_owned())).await?;
    // RabbitMQ 4.x grants these rights to the creator; 3.x does not.
    vhost.permit_writes(".*").await?;
    Ok(vhost)
}

impl TestVhost {
    /// The AMQP URL, including the virtual host.
    pub fn url(&self) -> String {
        format!("{}/{}", self.amqp, self.name)
    }

    /// The virtual host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets its user write to the exchanges and queues that match `resources`, and do all else.
    pub async fn permit_writes(&self, resources: &str) -> Result<()> {
        let permissions = format!(r#"{{"configure": ".*", "write": "{resources}", "read": ".*"}}"#);
        self.set(&format!("permissions/{}/{}", self.name, self.user()?), Some(permissions)).await
    }

    /// Lets its user publish to an exchange under the routing keys that match `keys` only.
    pub async fn permit_topics(&self, exchange: &str, keys: &str) -> Result<()> {
        let permissions = format!(r#"{{"exchange": "{exchange}", "write": "{keys}", "read": ".*"}}"#);
        self.set(&format!("topic-permissions/{}/{}", self.name, self.user()?), Some(permissions)).await
    }

    fn user(&self) -> Result<String> {
        Ok(Url::parse(&self.api).context("the management API's URL is invalid")?.username().to_owned())
    }

    /// Sets the only policy, on one queue or exchange, as an operator may: a JSON object. `None` removes it.
    pub async fn set_policy(&self, name: &str, definition: Option<&str>) -> Result<()> {
        let pattern = name.replace('.', r"\\.");
        let policy = definition.map(|definition| {
            format!(r#"{{"pattern": "^{pattern}$", "definition": {definition}, "apply-to": "all"}}"#)
        });
        self.set(&format!("policies/{}/only", self.name), policy).await
    }

    /// Limits the number of connections to the virtual host; `None` removes the limit.
    pub async fn limit_connections(&self, connections: Option<u32>) -> Result<()> {
        let limit = connections.map(|connections| format!(r#"{{"value": {connections}}}"#));
        self.set(&format!("vhost-limits/{}/max-connections", self.name), limit).await
    }

    /// Sets an object of the management API, or deletes it.
    async fn set(&self, path: &str, object: Option<String>) -> Result<()> {
        set(&format!("{}/api/{path}", self.api), object).await
    }

    /// A queue as the management API describes it: a JSON object with `arguments`, among others.
    pub async fn describe_queue(&self, queue: &str) -> Result<String> {
        let path = format!("{}/api/queues/{}/{queue}", self.api, self.name);
        let response = reqwest::Client::new().get(&path).timeout(REQUEST_TIMEOUT).send().await?;
        let response = response.error_for_status().with_context(|| format!("failed to GET {path}"))?;
        Ok(response.text().await?)
    }

    /// The URL of the broker's management API, which can delete declared objects and close connections.
    pub fn api_url(&self) -> &str {
        &self.api
    }
}

impl Drop for TestVhost {
    fn drop(&mut self) {
        let vhost = format!("{}/api/vhosts/{}", self.api, self.name);
        block_on_cleanup(async move { set(&vhost, None).await });
    }
}

async fn set(url: &str, object: Option<String>) -> Result<()> {
    let client = reqwest::Client::new();
    let request = match object {
        Some(object) => client.put(url).header("content-type", "application/json").body(object),
        None => client.delete(url),
    };
    let response = request.timeout(REQUEST_TIMEOUT).send().await?;
    response.error_for_status().with_context(|| format!("failed to set or delete {url}"))?;
    Ok(())
}
