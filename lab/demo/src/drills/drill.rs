use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;

use super::drill_run::DrillRun;
use super::report::Report;
use crate::own_system::OwnSystem;

/// One drill.
pub(crate) struct Drill {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// What a reader learns from it.
    pub(crate) teaches: &'static str,
    /// What to predict before it runs.
    pub(crate) question: &'static str,
    /// What the drill claims. The verdict is about this.
    pub(crate) claim: &'static str,
    /// How long the fault lasts unless the command line says otherwise.
    pub(crate) outage: Duration,
    pub(crate) system: Subject,
    pub(super) run: for<'a> fn(&'a DrillRun<'a>) -> RunningDrill<'a>,
}

/// What a drill breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Broker,
    Network,
    Database,
    Service,
    Client,
    Data,
    Time,
}

/// The system that a drill runs on.
#[derive(Clone, Copy)]
pub(crate) enum Subject {
    /// The one that is running, in processes or in containers; if there is none, one that is started like it.
    Running,
    /// One with a proxy before each server: that of the lab's containers, seen from their network, or one of its own.
    Proxied,
    /// One of its own, with processes and a proxy before each server.
    Own(fn() -> OwnSystem),
}

/// Boxed, because the future of each drill has a type of its own.
type RunningDrill<'a> = Pin<Box<dyn Future<Output = Result<Report>> + 'a>>;

impl Group {
    pub(crate) const ALL: [Self; 7] =
        [Self::Broker, Self::Network, Self::Database, Self::Service, Self::Client, Self::Data, Self::Time];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broker => "broker",
            Self::Network => "network",
            Self::Database => "database",
            Self::Service => "service",
            Self::Client => "client",
            Self::Data => "data",
            Self::Time => "time",
        })
    }
}
