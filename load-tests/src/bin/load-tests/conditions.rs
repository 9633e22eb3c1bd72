//! The conditions that a benchmark ran under. A rate means little without the durability settings behind it.

use std::fmt;

use anyhow::Context as _;
use serde::Serialize;
use sqlx::{PgConnection, Row as _};
use testbed::Home;

use crate::pgbench::cores;

/// Read from the machine and from the servers, never assumed.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Conditions {
    cores: u32,
    /// The other processes' share of the cores while the system was idle: before the first turn, and after the last.
    other_work: [Option<f64>; 2],
    /// In containers, or as plain processes.
    servers: &'static str,
    postgres: String,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    shared_buffers: String,
    /// RabbitMQ's version, or `stopped`.
    rabbitmq: String,
    /// The type of each queue that takes events, as the broker reports it.
    queues: String,
    /// What counts as published.
    confirms: &'static str,
    /// The services' settings that are not their defaults.
    settings: Vec<String>,
}

impl Conditions {
    /// Asks the database and, if it runs, the broker's management API (`http://user:password@host:port`).
    pub(crate) async fn read(
        database: &mut PgConnection,
        broker_api: Option<&str>,
        home: Home,
        other_work: [Option<f64>; 2],
    ) -> anyhow::Result<Self> {
        let row = sqlx::query(
            "select current_setting('server_version'), current_setting('fsync'),
                    current_setting('synchronous_commit'), current_setting('full_page_writes'),
                    current_setting('shared_buffers')",
        )
        .fetch_one(database)
        .await
        .context("failed to read the database's settings")?;
        let (rabbitmq, queues) = match broker_api {
            Some(api) => (version(api).await?, queues(api).await?),
            None => ("stopped".to_owned(), "none".to_owned()),
        };
        Ok(Self {
            cores: cores(),
            other_work,
            servers: match home {
                Home::Docker => "containers",
                Home::Local => "plain processes",
            },
            postgres: row.try_get(0)?,
            fsync: row.try_get(1)?,
            synchronous_commit: row.try_get(2)?,
            full_page_writes: row.try_get(3)?,
            shared_buffers: row.try_get(4)?,
            rabbitmq,
            queues,
            confirms: "each message, mandatory and persistent",
            settings: Vec::new(),
        })
    }

    /// Adds the settings that the services were given.
    pub(crate) fn with_settings(mut self, settings: &[(String, String)]) -> Self {
        self.settings = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        self
    }
}

async fn get(url: &str) -> anyhow::Result<serde_json::Value> {
    let client = reqwest::Client::builder().timeout(std::time::Duration::from_secs(5)).no_proxy().build()?;
    let answer = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
    // Without the URL: it contains a password.
    let answer = answer.map_err(reqwest::Error::without_url).context("failed to ask the broker's API")?;
    Ok(answer.json().await?)
}

async fn version(api: &str) -> anyhow::Result<String> {
    let overview = get(&format!("{api}/api/overview")).await?;
    let version = overview["rabbitmq_version"].as_str();
    Ok(version.context("failed to read the broker's version: its API names none")?.to_owned())
}

async fn queues(api: &str) -> anyhow::Result<String> {
    let all = get(&format!("{api}/api/queues")).await?;
    let mut types: Vec<String> = all
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|queue| Some(format!("{} {}", queue["name"].as_str()?, queue["type"].as_str()?)))
        .filter(|named| !named.contains(".dead "))
        .collect();
    types.sort_unstable();
    Ok(types.join(", "))
}

impl fmt::Display for Conditions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { cores, servers, postgres, fsync, synchronous_commit, .. } = self;
        let Conditions { full_page_writes, shared_buffers, rabbitmq, queues, confirms, settings, .. } = self;
        let [before, after] = self.other_work.map(|share| match share {
            Some(share) => format!("{:.0} %", share * 100.0),
            None => "?".to_owned(),
        });
        writeln!(
            to,
            "  {cores} cores for everything; busy while the system was idle: {before} before, {after} after"
        )?;
        writeln!(
            to,
            "  PostgreSQL {postgres}: fsync={fsync}, synchronous_commit={synchronous_commit}, \
             full_page_writes={full_page_writes}, shared_buffers={shared_buffers}"
        )?;
        writeln!(to, "  RabbitMQ {rabbitmq}; queues: {queues}; confirms: {confirms}; servers as {servers}")?;
        if !settings.is_empty() {
            writeln!(to, "  settings of the services: {}", settings.join(" "))?;
        }
        Ok(())
    }
}
