//! The file by which a command in another terminal finds the system that `demo up` runs.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::paths;

/// Where everything is. It holds passwords, so only this user can read it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    pub(crate) orders_url: String,
    pub(crate) inventory_url: String,
    pub(crate) billing_url: String,
    pub(crate) provider_url: String,
    pub(crate) auditor_url: String,
    pub(crate) admin_url: String,
    pub(crate) amqp_url: String,
    pub(crate) rabbitmq_api: String,
    pub(crate) admin: AdminUrls,
    pub(crate) admin_token: String,
    pub(crate) control: String,
    pub(crate) token: String,
}

/// Where each service serves its operators.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct AdminUrls {
    pub(crate) orders: String,
    pub(crate) inventory: String,
    pub(crate) billing: String,
}

impl State {
    pub(crate) fn write(&self) -> Result<()> {
        let path = paths::state();
        std::fs::create_dir_all(paths::home())?;
        let _ = std::fs::remove_file(&path);
        let file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(&path);
        let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        Ok(())
    }

    /// `None` if there is none, or none that can be read: the process that wrote it may have been killed.
    pub(crate) fn read() -> Option<Self> {
        serde_json::from_slice(&std::fs::read(paths::state()).ok()?).ok()
    }

    pub(crate) fn remove() {
        let _ = std::fs::remove_file(paths::state());
    }
}
