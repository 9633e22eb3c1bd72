//! A server in a container or as a local process.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::container::Container;
use crate::eventually::eventually_send;
use crate::local_server::LocalServer;

/// A PostgreSQL or RabbitMQ server. Each operation means the same for a container and for a local process.
#[derive(Debug)]
pub(crate) enum Server {
    Container(Container),
    Local(Box<LocalServer>),
}

impl Server {
    pub(crate) async fn kill(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.kill().await,
            Self::Local(server) => server.process.kill().await,
        }
    }

    pub(crate) async fn start(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.start().await,
            Self::Local(server) => server.process.start(),
        }
    }

    pub(crate) async fn pause(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.pause().await,
            Self::Local(server) => server.process.pause(),
        }
    }

    pub(crate) async fn resume(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.resume().await,
            Self::Local(server) => server.process.resume(),
        }
    }

    pub(crate) async fn stop(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.stop().await,
            Self::Local(server) => server.stop().await,
        }
    }

    pub(crate) async fn pid(&self) -> Option<u32> {
        match self {
            Self::Container(container) => container.pid().await,
            Self::Local(server) => server.process.pid(),
        }
    }

    /// Waits until `probe` succeeds. If the server has ended, fails at once with the end of its log.
    pub(crate) async fn wait_ready<Probe>(
        &self,
        name: &str,
        deadline: Duration,
        probe: impl Fn() -> Probe + Send + Sync,
    ) -> Result<()>
    where
        Probe: Future<Output = Result<()>> + Send,
    {
        let probe = &probe;
        eventually_send(&format!("{name} to accept connections"), deadline, || async move {
            match probe().await {
                Ok(()) => Ok(Some(Ok(()))),
                Err(not_ready) => match self.check_running().await {
                    Ok(()) => Err(not_ready),
                    Err(ended) => Ok(Some(Err(ended))),
                },
            }
        })
        .await?
        .with_context(|| format!("failed to start {name}"))
    }

    async fn check_running(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.check_running().await,
            Self::Local(server) => server.process.check_running(),
        }
    }
}
