//! Chooses between containers and local processes.

use anyhow::{Result, bail};

use crate::container;
use crate::install::{find_postgres, find_rabbitmq};

/// Where servers run: in containers, or as local processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Containers of the images in [`crate::IMAGES`].
    Docker,
    /// The machine's own PostgreSQL and RabbitMQ, as private processes on free ports.
    Local,
}

impl Home {
    /// Chooses where servers run. The first of these that applies:
    ///
    /// 1. `TESTBED_WITH`: `docker` or `local`;
    /// 2. containers, if an engine answers that has the images or can pull them;
    /// 3. local processes, if both servers are installed.
    ///
    /// Otherwise the error says in one line what is missing and which command installs it.
    pub async fn choose() -> Result<Self> {
        match std::env::var("TESTBED_WITH").as_deref() {
            Ok("docker") => return Ok(Self::Docker),
            Ok("local") => return Ok(Self::Local),
            Ok(other) => bail!("TESTBED_WITH is `{other}`: expected `docker` or `local`"),
            Err(_) => {}
        }
        let no_engine = match container::check_usable().await {
            Ok(()) => return Ok(Self::Docker),
            Err(reason) => reason,
        };
        find_postgres()
            .and(find_rabbitmq())
            .map(|_| Self::Local)
            .map_err(|missing| missing.context(format!("no container engine to use either ({no_engine:#})")))
    }
}
