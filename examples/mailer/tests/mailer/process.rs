//! Starts the mailer's binary in its own process.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use reqwest::Client;
use serde_json::Value;
use testbed::{eventually, free_port, guard::GuardedProcess};
use uuid::Uuid;

use crate::support::{DEADLINE, MailerDatabase};

const TOKEN: &str = "a-token-for-this-test";

pub(crate) struct Mailer {
    process: GuardedProcess,
    url: String,
    admin_url: String,
}

impl Mailer {
    /// Starts the mailer and waits until it is ready: then its queue exists.
    pub(crate) async fn start(database: &MailerDatabase, amqp_url: &str) -> anyhow::Result<Self> {
        let (http, admin) = (format!("127.0.0.1:{}", free_port()?), format!("127.0.0.1:{}", free_port()?));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mailer"));
        command.env("MAILER_DATABASE_URL", database.database.url("mailer"));
        command.env("MAILER_AMQP_URL", amqp_url);
        command.env("MAILER_HTTP_ADDRESS", &http).env("MAILER_ADMIN_ADDRESS", &admin);
        command.env("MAILER_ADMIN_TOKEN", TOKEN);
        let process = GuardedProcess::spawn(&command, &log())?;
        let mut mailer =
            Self { process, url: format!("http://{http}"), admin_url: format!("http://{admin}") };
        mailer.wait_ready().await.with_context(|| mailer.process.log_tail())?;
        Ok(mailer)
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let ready = format!("{}/readyz", self.url);
        eventually("the mailer to be ready", DEADLINE, async || {
            Client::new().get(&ready).send().await?.error_for_status()?;
            Ok(Some(()))
        })
        .await
    }

    /// Sends SIGKILL: the process finishes nothing that it has begun.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.signal("KILL")?;
        self.process.wait(DEADLINE).await.map(drop)
    }

    /// The number of duplicates that the process has dropped.
    pub(crate) async fn duplicates(&self) -> anyhow::Result<u64> {
        let metrics = Client::new().get(format!("{}/metrics", self.url)).send().await?.text().await?;
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

fn log() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mailer-{}.log", Uuid::now_v7()))
}
