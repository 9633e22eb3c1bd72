//! Starts the mailer's binary in its own process.

use std::process::Command;

use reqwest::Client;
use testbed::TestService;

use crate::support::MailerDatabase;

pub(crate) struct Mailer {
    pub(crate) service: TestService,
}

impl Mailer {
    /// Starts the mailer and waits until it is ready: then its queue exists.
    pub(crate) async fn start(database: &MailerDatabase, amqp_url: &str) -> anyhow::Result<Self> {
        let url = database.database.url("mailer");
        let settings = [("MAILER_DATABASE_URL", url.as_str()), ("MAILER_AMQP_URL", amqp_url)];
        let program = Command::new(env!("CARGO_BIN_EXE_mailer"));
        let service = TestService::start(program, "MAILER_", &settings)?;
        service.ready().await?;
        Ok(Self { service })
    }

    /// The number of duplicates that the process has dropped.
    pub(crate) async fn duplicates(&self) -> anyhow::Result<u64> {
        let metrics =
            Client::new().get(format!("{}/metrics", self.service.url())).send().await?.text().await?;
        let counters = metrics.lines().filter(|line| line.starts_with("inbox_duplicates_total"));
        Ok(counters.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }
}
