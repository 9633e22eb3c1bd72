//! Starts the mailer's binary in its own process.

use std::process::Command;

use anyhow::bail;
use reqwest::Client;
use serde_json::Value;
use testbed::{TestService, free_port};

use crate::support::MailerDatabase;

const TOKEN: &str = "a-token-for-this-test";

pub(crate) struct Mailer {
    pub(crate) service: TestService,
    admin_url: String,
}

impl Mailer {
    /// Starts the mailer and waits until it is ready: then its queue exists.
    pub(crate) async fn start(database: &MailerDatabase, amqp_url: &str) -> anyhow::Result<Self> {
        let (url, admin) = (database.database.url("mailer"), format!("127.0.0.1:{}", free_port()?));
        let settings = [
            ("MAILER_DATABASE_URL", url.as_str()),
            ("MAILER_AMQP_URL", amqp_url),
            ("MAILER_ADMIN_ADDRESS", &admin),
            ("MAILER_ADMIN_TOKEN", TOKEN),
        ];
        let program = Command::new(env!("CARGO_BIN_EXE_mailer"));
        let service = TestService::start(program, "MAILER_", &settings)?;
        service.ready().await?;
        Ok(Self { service, admin_url: format!("http://{admin}") })
    }

    /// The number of duplicates that the process has dropped.
    pub(crate) async fn duplicates(&self) -> anyhow::Result<u64> {
        let metrics =
            Client::new().get(format!("{}/metrics", self.service.url())).send().await?.text().await?;
        let counters = metrics.lines().filter(|line| line.starts_with("inbox_duplicates_total"));
        Ok(counters.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// The unresolved dead letters, from the admin API.
    pub(crate) async fn dead_letters(&self) -> anyhow::Result<Vec<Value>> {
        let url = format!("{}/admin/dead-letters", self.admin_url);
        let answer = Client::new().get(url).bearer_auth(TOKEN).send().await?;
        let page: Value = serde_json::from_str(&answer.error_for_status()?.text().await?)?;
        match &page["items"] {
            Value::Array(items) => Ok(items.clone()),
            _ => bail!("no items: {page}"),
        }
    }
}
