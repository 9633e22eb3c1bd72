//! The parts of the running system that a drill can break, and the faults.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

/// A part of the running system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Broker,
    Database,
    /// `orders`, `inventory`, `billing`, or the payment `provider`.
    Service(String),
}

/// A fault, or its repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// SIGKILL.
    Kill,
    /// Repairs `Kill`.
    Start,
    /// SIGSTOP.
    Pause,
    /// Repairs `Pause`.
    Resume,
}

impl Target {
    /// The name of its container in `compose.yaml`.
    pub(crate) fn container(&self) -> &str {
        match self {
            Self::Broker => "rabbitmq",
            Self::Database => "postgres",
            Self::Service(name) => name,
        }
    }
}

impl Action {
    /// Returns the repair of a fault, and `None` for a repair.
    pub(crate) fn repair(self) -> Option<Self> {
        match self {
            Self::Kill => Some(Self::Start),
            Self::Pause => Some(Self::Resume),
            Self::Start | Self::Resume => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broker => "broker",
            Self::Database => "database",
            Self::Service(name) => name,
        })
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "broker" => Self::Broker,
            "database" => Self::Database,
            "orders" | "inventory" | "billing" | "provider" => Self::Service(name.to_owned()),
            other => bail!("unknown part `{other}`"),
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
        })
    }
}

impl FromStr for Action {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "kill" => Self::Kill,
            "start" => Self::Start,
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            other => bail!("unknown action `{other}`"),
        })
    }
}

/// The faults that are not repaired yet.
#[derive(Debug, Default)]
pub(crate) struct ActiveFaults(Vec<(Target, Action)>);

impl ActiveFaults {
    /// Records an action: a fault is added, its repair removes it.
    pub(crate) fn record(&mut self, action: Action, target: &Target) {
        match action.repair() {
            Some(_) => self.0.push((target.clone(), action)),
            None => self.0.retain(|(broken, fault)| broken != target || fault.repair() != Some(action)),
        }
    }

    /// Returns what repairs everything, the latest fault first.
    pub(crate) fn repairs(&self) -> Vec<(Action, Target)> {
        let repair = |(target, fault): &(Target, Action)| Some((fault.repair()?, target.clone()));
        self.0.iter().rev().filter_map(repair).collect()
    }
}
