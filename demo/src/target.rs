//! What can be broken, and how.

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

/// A fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// SIGKILL.
    Kill,
    /// Undoes `Kill`.
    Start,
    /// SIGSTOP.
    Pause,
    /// Undoes `Pause`.
    Resume,
}

impl Verb {
    /// What mends it, if it is a fault.
    pub(crate) fn undone_by(self) -> Option<Self> {
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
            other => bail!("there is no part called `{other}`"),
        })
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
        })
    }
}

impl FromStr for Verb {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "kill" => Self::Kill,
            "start" => Self::Start,
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            other => bail!("`{other}` is nothing that can be done to a part"),
        })
    }
}

/// The faults that are in force, so that they can be undone in any event.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<(Target, Verb)>);

impl Faults {
    /// Keeps account of an action: a fault is added, its end removes it.
    pub(crate) fn note(&mut self, verb: Verb, target: &Target) {
        match verb.undone_by() {
            Some(_) => self.0.push((target.clone(), verb)),
            None => self.0.retain(|(broken, fault)| broken != target || fault.undone_by() != Some(verb)),
        }
    }

    /// What has to be done to mend everything, the latest fault first.
    pub(crate) fn remedies(&self) -> Vec<(Verb, Target)> {
        let remedy = |(target, fault): &(Target, Verb)| Some((fault.undone_by()?, target.clone()));
        self.0.iter().rev().filter_map(remedy).collect()
    }
}
