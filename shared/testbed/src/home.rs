//! Where servers live.

use std::sync::OnceLock;

use anyhow::{Result, bail};

use crate::{container, local_postgres, local_rabbitmq};

/// Where servers live: in containers, or as processes of the machine's own binaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Containers of the images in [`crate::IMAGES`].
    Docker,
    /// The machine's own PostgreSQL and RabbitMQ, as private processes on free ports.
    Local,
}

/// What was decided by hand for this process.
static DECIDED: OnceLock<Home> = OnceLock::new();

impl Home {
    /// From now on [`Home::choose`] answers this, in this process. The first decision stands.
    pub fn decide(self) {
        let _ = DECIDED.set(self);
    }

    /// What was decided by [`Home::decide`]; else what `TESTBED_WITH` says (`docker` or `local`); else containers where an engine answers that has the images
    /// or can pull them; else the machine's own servers, if both are installed. The error is one line that says what
    /// is missing and which command mends it.
    pub async fn choose() -> Result<Self> {
        if let Some(decided) = DECIDED.get() {
            return Ok(*decided);
        }
        match std::env::var("TESTBED_WITH").as_deref() {
            Ok("docker") => return Ok(Self::Docker),
            Ok("local") => return Ok(Self::Local),
            Ok(other) => bail!("TESTBED_WITH is `{other}`: `docker` or `local` was expected"),
            Err(_) => {}
        }
        let no_engine = match container::usable().await {
            Ok(()) => return Ok(Self::Docker),
            Err(reason) => reason,
        };
        local_postgres::find()
            .and(local_rabbitmq::find().map(drop))
            .map(|()| Self::Local)
            .map_err(|missing| missing.context(format!("no container engine to use either ({no_engine:#})")))
    }
}
