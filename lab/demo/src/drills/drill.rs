//! A drill: one row of a table. Most rows name a fault and its signs; a few have steps.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

use super::drill_run::{DrillRun, Ended};
use super::felt::Felt;
use super::report::Refusals;
use crate::fault::Fault;
use crate::own_system::OwnSystem;
use crate::reconciliation::Kind;

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
    /// How long the faults last unless the command line says otherwise.
    pub(crate) outage: Duration,
    pub(crate) system: Subject,
    /// The faults that are injected together under load, and repaired in the opposite order.
    pub(super) faults: &'static [Fault<'static>],
    /// How often.
    pub(super) times: u32,
    /// The signs that must be seen while the faults last.
    pub(super) felt: &'static [Felt],
    /// The work under load of a drill that needs more than faults and signs.
    pub(super) steps: Option<Steps>,
    /// Whether one in four orders is cancelled at once. Not where a fault loses what the broker had, because a cancellation may
    /// arrive before its creation is published again; nor where it would hide what is looked for.
    pub(crate) cancels: bool,
    pub(super) refusals: Refusals,
    /// What is broken if the claim is false for the services as they are: the drill shows that, and nothing else may break.
    pub(crate) breaks: &'static [Kind],
    /// The conditions at the end, beside the reconciliation.
    pub(super) at_end: &'static [AtEnd],
}

pub(super) type Steps = for<'a> fn(&'a DrillRun<'a>) -> LocalBoxFuture<'a, Result<()>>;
pub(super) type AtEnd = fn(&DrillRun<'_>, &Ended);

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
    /// One with a proxy before each server: the proxy of the lab's containers, seen from their network, or a separate one.
    Proxied,
    /// A separate one, with processes and a proxy before each server.
    Own(fn() -> OwnSystem),
}

impl Drill {
    /// The fields that most rows share: orders must be accepted all the time.
    pub(super) const ROW: Self = Self {
        name: "",
        group: Group::Broker,
        teaches: "",
        question: "",
        claim: "",
        outage: Duration::from_secs(10),
        system: Subject::Running,
        faults: &[],
        times: 1,
        felt: &[],
        steps: None,
        cancels: true,
        refusals: Refusals::BreakTheClaim,
        breaks: &[],
        at_end: &[],
    };
}

impl Group {
    pub(crate) const ALL: [Self; 7] =
        [Self::Broker, Self::Network, Self::Database, Self::Service, Self::Client, Self::Data, Self::Time];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}
