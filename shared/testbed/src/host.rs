//! The faults that both servers know, in a container or in a process of ours.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::container::Container;
use crate::eventually::eventually_send;
use crate::local::LocalServer;

/// One server, wherever it lives. Each verb means the same in both.
#[derive(Debug)]
pub(crate) enum Host {
    Container(Container),
    Local(Box<LocalServer>),
}

impl Host {
    pub(crate) async fn kill(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.kill().await,
            Self::Local(server) => server.kill().await,
        }
    }

    pub(crate) async fn start(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.start().await,
            Self::Local(server) => server.start(),
        }
    }

    pub(crate) async fn pause(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.pause().await,
            Self::Local(server) => server.pause(),
        }
    }

    pub(crate) async fn resume(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.resume().await,
            Self::Local(server) => server.resume(),
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
            Self::Local(server) => server.pid(),
        }
    }

    /// Waits until `answers` succeeds. If the server has ended meanwhile, the error comes at once, with its last
    /// words.
    pub(crate) async fn ready<Answer>(
        &self,
        name: &str,
        deadline: Duration,
        answers: impl Fn() -> Answer + Send + Sync,
    ) -> Result<()>
    where
        Answer: Future<Output = Result<()>> + Send,
    {
        let answers = &answers;
        eventually_send(&format!("{name} to take connections"), deadline, || async move {
            match answers().await {
                Ok(()) => Ok(Some(Ok(()))),
                Err(not_yet) => match self.check_alive().await {
                    Ok(()) => Err(not_yet),
                    Err(ended) => Ok(Some(Err(ended))),
                },
            }
        })
        .await?
        .with_context(|| format!("{name} did not start"))
    }

    async fn check_alive(&self) -> Result<()> {
        match self {
            Self::Container(container) => container.check_alive().await,
            Self::Local(server) => server.check_alive(),
        }
    }
}
