//! A virtual host of one's own.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::Url;
use uuid::Uuid;

use crate::database::best_effort;
use crate::servers;

const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A RabbitMQ virtual host for one test: no exchange, queue or message is shared with any other. Deleted with the
/// value, as far as that is possible.
#[derive(Debug)]
pub struct TestVhost {
    name: String,
    amqp: String,
    api: String,
}

/// A new, empty virtual host on the shared broker.
pub async fn vhost() -> Result<TestVhost> {
    let broker = servers::rabbitmq().await?;
    let name = format!("test-{}", Uuid::now_v7().simple());
    let user = Url::parse(&broker.api).context("TESTBED_RABBITMQ_API")?.username().to_owned();
    let put = |path: String, body: &'static str| async move {
        let request = reqwest::Client::new().put(&path).header("content-type", "application/json").body(body);
        let answer = request.timeout(ANSWER_WITHIN).send().await?.error_for_status();
        answer.with_context(|| format!("PUT {path}")).map(drop)
    };
    put(format!("{}/api/vhosts/{name}", broker.api), "{}").await?;
    // On 4.x the creator may use it at once; on 3.x that has to be said.
    let all = r#"{"configure": ".*", "write": ".*", "read": ".*"}"#;
    put(format!("{}/api/permissions/{name}/{user}", broker.api), all).await?;
    Ok(TestVhost { name, amqp: broker.url.clone(), api: broker.api.clone() })
}

impl TestVhost {
    /// The AMQP URL, virtual host included.
    pub fn url(&self) -> String {
        format!("{}/{}", self.amqp, self.name)
    }

    /// The virtual host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The management API's URL (of the broker): what is declared can be deleted, connections can be closed.
    pub fn api_url(&self) -> &str {
        &self.api
    }
}

impl Drop for TestVhost {
    fn drop(&mut self) {
        let vhost = format!("{}/api/vhosts/{}", self.api, self.name);
        best_effort(async move {
            reqwest::Client::new().delete(vhost).send().await?;
            Ok(())
        });
    }
}
