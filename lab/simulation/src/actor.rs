use std::fmt;

/// The number of services that consume events, such as inventory and billing. Each has a queue and an inbox.
pub(crate) const SERVICES: usize = 2;

/// The queues of the services.
pub(crate) const QUEUES: [&str; SERVICES] = ["inventory", "billing"];

/// Who takes a step in the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    Writer(usize),
    Relay(usize),
    /// The service, and which of its instances.
    Consumer(usize, usize),
    /// The broker, the databases and the network.
    Environment,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(n) => write!(f, "writer {n}"),
            Self::Relay(n) => write!(f, "relay {n}"),
            Self::Consumer(service, n) => write!(f, "consumer {service}.{n}"),
            Self::Environment => write!(f, "environment"),
        }
    }
}
