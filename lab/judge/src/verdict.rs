//! Verdicts, and what the judge has found out about an entrant on one level.

use std::{fmt, process::ExitCode};

use serde::Serialize;
use uuid::Uuid;

/// The verdict on a level, a drill or a command, from the best to the worst. Each has its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every promise held (exit code 0).
    Held,
    /// Nothing is proven: the fault was not felt, the load missed it, or the environment failed (2).
    Inconclusive,
    /// A promise was broken (1).
    Broken,
    /// A command was interrupted, and the faults that it had caused are repaired (3).
    Interrupted,
}

impl Verdict {
    /// The verdict in capitals, as it is printed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Broken => "BROKEN",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Interrupted => "INTERRUPTED",
        }
    }
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        Self::from(match verdict {
            Verdict::Held => 0,
            Verdict::Broken => 1,
            Verdict::Inconclusive => 2,
            Verdict::Interrupted => 3,
        })
    }
}

/// What a relay promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    NothingIsLost,
    EverythingIsPublished,
    EverythingIsMarked,
    OnlyCommittedEvents,
    OrderOfEachAggregate,
    SameIdInEachCopy,
    NoNeedlessCopies,
    BodyAsWritten,
    Persistent,
    EndsWhenAsked,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingIsLost => "a committed event is never lost",
            Self::EverythingIsPublished => "a committed event is published in time",
            Self::EverythingIsMarked => "a published event is marked",
            Self::OnlyCommittedEvents => "only committed events are published",
            Self::OrderOfEachAggregate => "an aggregate's events arrive in their order",
            Self::SameIdInEachCopy => "each copy has the event's id",
            Self::NoNeedlessCopies => "without a fault nothing is published twice",
            Self::BodyAsWritten => "the body is published as it was written",
            Self::Persistent => "messages are persistent",
            Self::EndsWhenAsked => "SIGTERM ends the relay",
        })
    }
}

/// A broken promise, with its evidence.
#[derive(Debug, Clone, Serialize)]
pub struct Breach {
    pub promise: Promise,
    pub event: Option<Uuid>,
    /// What happened to the event, with times in seconds since the level began.
    pub what: String,
}

impl Breach {
    pub(crate) fn of(promise: Promise, event: Uuid, what: String) -> Self {
        Self { promise, event: Some(event), what }
    }
}

/// A condition that must be observed for a level to prove anything.
#[derive(Debug, Clone, Serialize)]
pub struct Fact {
    pub what: String,
    pub observed: bool,
}

/// The result of one level.
#[derive(Debug, Clone, Serialize)]
pub struct LevelResult {
    pub level: u8,
    pub name: &'static str,
    pub verdict: Verdict,
    pub breaches: Vec<Breach>,
    pub facts: Vec<Fact>,
    /// How many messages arrived more than once: allowed, and worth knowing.
    pub copies: usize,
    /// How often an instance ended by itself and was started again.
    pub restarts: u32,
    pub seconds: f64,
    /// Why the level could not be judged.
    pub error: Option<String>,
}

/// So many breaches are printed of each level.
const PRINTED: usize = 3;

impl LevelResult {
    /// The result for people: one line, and one for each of the first breaches.
    pub fn lines(&self) -> Vec<String> {
        let Self { level, name, verdict, seconds, copies, restarts, .. } = self;
        let mut lines = vec![format!(
            "  {level}  {:<12} {name} ({seconds:.0} s, {copies} copies, {restarts} restarts)",
            verdict.word()
        )];
        for Breach { promise, event, what } in self.breaches.iter().take(PRINTED) {
            let event = event.map(|id| format!(" event {id}")).unwrap_or_default();
            lines.push(format!("       broken: {promise}:{event} {what}"));
        }
        if self.breaches.len() > PRINTED {
            lines.push(format!("       and {} more", self.breaches.len() - PRINTED));
        }
        let missing = self.facts.iter().filter(|fact| !fact.observed);
        lines.extend(missing.map(|fact| format!("       not felt: {}", fact.what)));
        lines.extend(self.error.iter().map(|error| format!("       not judged: {error}")));
        lines
    }
}
