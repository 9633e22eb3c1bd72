//! The parts of a running system, by name, and what can be done to each.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};

pub(crate) const BROKER: &str = "broker";
pub(crate) const DATABASE: &str = "database";

/// The services, which have tables and queues.
pub(crate) const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

/// The nodes of a broker, in the order of their numbers. Without a cluster there is only the first one.
pub(crate) const NODES: [&str; 3] = [BROKER, "broker-2", "broker-3"];

/// Every part that a person can name. A separate system may have more processes: `orders-2`.
const PARTS: [&str; 8] = [BROKER, NODES[1], NODES[2], DATABASE, "orders", "inventory", "billing", "provider"];

/// Returns the part with this name.
///
/// # Errors
/// When there is none.
pub(crate) fn part(name: &str) -> Result<&'static str> {
    let found = PARTS.into_iter().find(|part| *part == name);
    found.with_context(|| format!("unknown part `{name}`"))
}

/// A part in words.
pub(crate) fn title(part: &str) -> &str {
    match part {
        BROKER => "RabbitMQ",
        "broker-2" => "RabbitMQ's second node",
        "broker-3" => "RabbitMQ's third node",
        DATABASE => "PostgreSQL",
        "provider" => "the payment provider",
        service => service,
    }
}

/// The name of a part's container in `compose.yaml`.
pub(crate) fn container(part: &str) -> &str {
    match part {
        BROKER => "rabbitmq",
        "broker-2" => "rabbitmq-2",
        "broker-3" => "rabbitmq-3",
        DATABASE => "postgres",
        service => service,
    }
}

/// Adds up the messages of the services' queues and of their dead letters, from all queues of a broker.
pub(crate) fn count_queued<'a>(queues: impl IntoIterator<Item = (&'a str, Option<u64>)>) -> Result<u64> {
    let is_theirs = |name: &str| {
        let service = name.split('.').next();
        service.is_some_and(|service| SERVICES.contains(&service))
    };
    let mut theirs = queues.into_iter().filter(|(name, _)| is_theirs(name)).peekable();
    ensure!(theirs.peek().is_some(), "the services have no queues");
    theirs
        .map(|(name, messages)| messages.with_context(|| format!("there are no statistics of {name} yet")))
        .sum()
}

/// What can be done to a part.
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

impl Action {
    const ALL: [(Self, &str); 4] =
        [(Self::Kill, "kill"), (Self::Start, "start"), (Self::Pause, "pause"), (Self::Resume, "resume")];

    /// Returns the repair of a fault, and `None` for a repair.
    pub(crate) fn repair(self) -> Option<Self> {
        match self {
            Self::Kill => Some(Self::Start),
            Self::Pause => Some(Self::Resume),
            Self::Start | Self::Resume => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(action, _)| action == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Action {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == name);
        Ok(found.with_context(|| format!("unknown action `{name}`"))?.0)
    }
}

/// The faults that are not repaired yet.
#[derive(Debug, Default)]
pub(crate) struct ActiveFaults(Vec<(String, Action)>);

impl ActiveFaults {
    /// Records an action: a fault is added, its repair removes it.
    pub(crate) fn record(&mut self, action: Action, part: &str) {
        match action.repair() {
            Some(_) => self.0.push((part.to_owned(), action)),
            None => self.0.retain(|(broken, fault)| broken != part || fault.repair() != Some(action)),
        }
    }

    /// Returns what repairs everything, the latest fault first.
    pub(crate) fn repairs(&self) -> Vec<(Action, String)> {
        let repair = |(part, fault): &(String, Action)| Some((fault.repair()?, part.clone()));
        self.0.iter().rev().filter_map(repair).collect()
    }
}
