//! The faults that drills, the soak, the watch and the board inject: one list. `inject.rs` says how each is injected,
//! `repair.rs` how it is repaired, and both what proves that it happened.

mod inject;
mod operations;
mod repair;
mod statements;

use std::time::Duration;

use fault_proxy::{Direction, Effect, MAX_FAULT_DURATION};
use serde::Serialize;

use statements::{ACCEPT_MARKS, ERASE_UNROUTABLE, REFUSE_MARKS, WRITE_UNROUTABLE};

pub use inject::Injected;
pub(crate) use inject::LOST_ACKS;
pub(crate) use operations::{publish_copy, reach_crash_point};
pub use repair::Repaired;
pub(crate) use repair::repair_all;

/// A condition that must be observed, for a drill to prove anything or for its claim to hold.
#[derive(Debug, Serialize)]
pub struct Fact {
    /// In words, with the figures.
    pub(crate) what: String,
    pub(crate) observed: bool,
}

impl Fact {
    pub(crate) fn new(what: impl Into<String>, observed: bool) -> Self {
        Self { what: what.into(), observed }
    }
}

/// Something that breaks a part of a system, or gets in its way.
#[derive(Clone, Debug)]
pub enum Fault<'a> {
    /// SIGKILL. Repaired by a start.
    Kill(&'a str),
    /// SIGSTOP. Repaired by SIGCONT.
    Freeze(&'a str),
    /// This node of RabbitMQ, by its number, and the others cannot reach each other. Clients still reach it.
    CutOff(usize),
    /// The next process that reaches the crash point of the system's setup kills itself.
    Crash,
    /// The reader of this process's log is stopped with SIGSTOP.
    StallLogReader(&'a str),
    /// The proxy does this to the connections of these routes, until it is repaired or has lasted for this long.
    Network {
        what: &'a str,
        routes: &'a [&'a str],
        effect: Effect,
        direction: Direction,
        lasts: Duration,
    },
    /// The proxy resets connections of a service to the broker, each before a `basic.ack` passes; for example a confirm.
    LoseAcks(&'a str, Direction, &'a str),
    /// A session of the order service's login executes this for as long as the fault lasts: `{}` stands for the seconds.
    Session {
        what: &'a str,
        sql: &'a str,
    },
    /// Statements of the order service's login, and those that repair it.
    Statements {
        what: &'a str,
        begin: &'a str,
        end: &'a str,
    },
    /// A session locks a table.
    Lock(&'a str),
    /// Inventory and billing fail for good over the same one in a hundred orders.
    Defect,
    /// Commits wait for a synchronous standby that does not exist.
    HangCommits,
    /// Every session of the services and of the payment provider is terminated.
    TerminateSessions,
    MemoryAlarm,
    /// The queue of this service is full at one message.
    FullQueue(&'a str),
    /// A message that is no event is in inventory's queue, and a dead letter that cannot be saved in billing's.
    BadMessages,
    /// The queue of this service takes and confirms nothing.
    SuspendQueue(&'a str),
    /// The broker closes all connections; of all services, if it is to wait until each is connected.
    CloseConnections {
        of_all: bool,
    },
    /// The broker refuses the password of the services, and closes their connections.
    ChangePassword,
    DeleteBindings,
    DeleteExchange,
    /// The queue of this service is gone, with what is in it.
    DeleteQueue(&'a str),
    /// The queue of this service is another one, which none of the services can use.
    ReplaceQueue(&'a str),
    /// The payment provider fails calls: `PUT /faults` with this body.
    Provider {
        what: &'a str,
        faults: &'a str,
    },
}

impl<'a> Fault<'a> {
    /// A fault of the network that lasts until it is repaired.
    pub(crate) const fn network(
        what: &'a str,
        routes: &'a [&'a str],
        effect: Effect,
        direction: Direction,
    ) -> Self {
        Self::Network { what, routes, effect, direction, lasts: MAX_FAULT_DURATION }
    }
}

/// No queue wants these events.
pub(crate) const UNROUTABLE_EVENTS: Fault<'_> = Fault::Statements {
    what: "wrote 4000 events that no queue wants",
    begin: WRITE_UNROUTABLE,
    end: ERASE_UNROUTABLE,
};
pub(crate) const REFUSED_MARKS: Fault<'_> = Fault::Statements {
    what: "no event of the order service can be marked as published",
    begin: REFUSE_MARKS,
    end: ACCEPT_MARKS,
};

/// The routes from the services to their servers.
pub(crate) const ROUTES: [&str; 6] = [
    "orders-database",
    "orders-broker",
    "inventory-database",
    "inventory-broker",
    "billing-database",
    "billing-broker",
];
