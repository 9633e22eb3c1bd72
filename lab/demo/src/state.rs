//! The addresses of a running system, and the file in which a command in another terminal finds those of `demo up`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::paths;

/// The logins that own tables.
pub(crate) const LOGINS: [&str; 4] = ["orders", "inventory", "billing", "provider"];

/// Where the services and their servers answer, with the passwords for them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Addresses {
    pub(crate) orders_url: String,
    pub(crate) inventory_url: String,
    pub(crate) billing_url: String,
    pub(crate) provider_url: String,
    pub(crate) auditor_url: String,
    /// For the labs: no command uses it.
    pub(crate) admin_url: String,
    /// The database with the login of each service and of the payment provider.
    pub(crate) databases: BTreeMap<String, String>,
    pub(crate) amqp_url: String,
    pub(crate) rabbitmq_api: String,
    /// The admin API of each service.
    pub(crate) admin: BTreeMap<String, String>,
    pub(crate) admin_token: String,
}

impl Addresses {
    /// The address of `orders`, `inventory`, `billing` or `provider`.
    pub(crate) fn url(&self, service: &str) -> &str {
        match service {
            "orders" => &self.orders_url,
            "inventory" => &self.inventory_url,
            "provider" => &self.provider_url,
            _ => &self.billing_url,
        }
    }

    /// The host and the port of each node of the broker.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = &str> {
        let (_, rest) = self.amqp_url.rsplit_once('@').unwrap_or_default();
        rest.split('/').next().unwrap_or_default().split(',')
    }
}

/// The file. It holds passwords, so only this user can read it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    #[serde(flatten)]
    pub(crate) addresses: Addresses,
    /// The order service's database, with its login: labs start a second order service.
    pub(crate) orders_database_url: String,
    /// The address at which `demo up` accepts commands.
    pub(crate) control: String,
    /// What a command has to send first.
    pub(crate) token: String,
    /// For `psql`, as the administrator and as the auditor: with the file of their passwords in the place of a password, which
    /// every user of the machine could read on a command line.
    pub(crate) admin_psql: String,
    pub(crate) auditor_psql: String,
}

/// A URL for `psql` that names the file of passwords.
pub(crate) fn for_psql(url: &str) -> Result<String> {
    let mut url = Url::parse(url)?;
    let _ = url.set_password(None);
    url.query_pairs_mut().append_pair("passfile", &paths::pgpass().to_string_lossy());
    Ok(url.into())
}

impl State {
    pub(crate) fn write(&self) -> Result<()> {
        std::fs::create_dir_all(paths::home())?;
        write_secret(&paths::state(), &serde_json::to_vec_pretty(self)?)?;
        let logins = [&self.addresses.auditor_url, &self.addresses.admin_url].map(|url| password_line(url));
        write_secret(&paths::pgpass(), logins.into_iter().collect::<Result<String>>()?.as_bytes())
    }

    /// Returns `None` if there is no file that can be read. A file is no proof that the system runs: the process that
    /// wrote it may have been killed.
    pub(crate) fn read() -> Option<Self> {
        serde_json::from_slice(&std::fs::read(paths::state()).ok()?).ok()
    }

    pub(crate) fn remove() {
        let _ = std::fs::remove_file(paths::state());
        let _ = std::fs::remove_file(paths::pgpass());
    }
}

/// A login in the form of PostgreSQL's password file.
fn password_line(url: &str) -> Result<String> {
    let url = Url::parse(url)?;
    let (user, password) = (url.username(), url.password().unwrap_or_default());
    Ok(format!("*:{}:*:{user}:{password}\n", url.port().unwrap_or(5432)))
}

/// Writes a file that only this user can read.
fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("failed to create {}", path.display()))?;
    Ok(file.write_all(content)?)
}
