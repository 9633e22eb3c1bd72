//! A virtual host for one test.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use uuid::Uuid;

use crate::async_drop::block_on_cleanup;
use crate::shared_servers;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

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
    let broker = shared_servers::rabbitmq().await?;
    let name = format!("test-{}", Uuid::now_v7().simple());
    put(format!("{}/api/vhosts/{name}", broker.api), "{}").await?;
    let vhost = TestVhost { name, amqp: broker.url.clone(), api: broker.api.clone() };
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
        put(format!("{}/api/permissions/{}/{}", self.api, self.name, self.user()?), permissions).await
    }

    /// Lets its user publish to an exchange under the routing keys that match `keys` only.
    pub async fn permit_topics(&self, exchange: &str, keys: &str) -> Result<()> {
        let path = format!("{}/api/topic-permissions/{}/{}", self.api, self.name, self.user()?);
        put(path, format!(r#"{{"exchange": "{exchange}", "write": "{keys}", "read": ".*"}}"#)).await
    }

    fn user(&self) -> Result<String> {
        Ok(Url::parse(&self.api).context("the management API's URL is invalid")?.username().to_owned())
    }

    /// Sets the only policy, on one queue, as an operator may: a JSON object. `None` removes it.
    pub async fn set_policy(&self, queue: &str, definition: Option<&str>) -> Result<()> {
        let path = format!("{}/api/policies/{}/only", self.api, self.name);
        let Some(definition) = definition else {
            let response = reqwest::Client::new().delete(&path).timeout(REQUEST_TIMEOUT).send().await?;
            response.error_for_status().context("failed to delete a policy")?;
            return Ok(());
        };
        let pattern = queue.replace('.', r"\\.");
        let policy =
            format!(r#"{{"pattern": "^{pattern}$", "definition": {definition}, "apply-to": "queues"}}"#);
        put(path, policy).await
    }

    /// Limits the number of connections to the virtual host; `None` removes the limit.
    pub async fn limit_connections(&self, connections: Option<u32>) -> Result<()> {
        let path = format!("{}/api/vhost-limits/{}/max-connections", self.api, self.name);
        let Some(connections) = connections else {
            let response = reqwest::Client::new().delete(&path).timeout(REQUEST_TIMEOUT).send().await?;
            response.error_for_status().context("failed to remove a limit")?;
            return Ok(());
        };
        put(path, format!(r#"{{"value": {connections}}}"#)).await
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
        block_on_cleanup(async move {
            reqwest::Client::new().delete(vhost).send().await?;
            Ok(())
        });
    }
}

async fn put(path: String, body: impl Into<reqwest::Body>) -> Result<()> {
    let request = reqwest::Client::new().put(&path).header("content-type", "application/json").body(body);
    let response = request.timeout(REQUEST_TIMEOUT).send().await?;
    response.error_for_status().with_context(|| format!("failed to PUT {path}"))?;
    Ok(())
}
