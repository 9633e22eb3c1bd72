//! Experiments: each leaves out one protection, and checks that the reconciliation notices.
//!
//! A promise that no missing protection can break is not being checked. Each experiment runs two systems, one complete and
//! one with a single protection left out, and injects the same fault into both. The complete one must hold; the other
//! must break the expected invariant. This shows that the checks can fail, which makes their silence worth something.

mod consumers;
mod faults;
mod judge;
mod order_write;
mod publisher;
mod relay;

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use flaws::Flaw;
use serde::Serialize;

pub use judge::Breach;

use crate::alteration::leave_out;
use crate::lab::Setup;
use faults::killed_at;

/// One protection to leave out, and the fault that shows that it is missing.
pub struct Experiment {
    /// Its table says which invariants must break.
    pub flaw: Flaw,
    /// The fault that both systems receive.
    pub fault: &'static str,
    run: fn(Setup) -> Running,
}

type Running = Pin<Box<dyn Future<Output = Result<Option<Breach>>>>>;

const fn experiment(flaw: Flaw, fault: &'static str, run: fn(Setup) -> Running) -> Experiment {
    Experiment { flaw, fault, run }
}

/// All experiments, by the part that they replace.
pub static ALL: [Experiment; 15] = [
    // The relay: claim by state, publish, then mark, and scan even when no wake-up comes.
    experiment(Flaw::MarkBeforeConfirm, "the relay is killed after its commit", |setup| {
        Box::pin(killed_at("relay-committed:kill", Some("orders"), setup))
    }),
    experiment(Flaw::CursorOverSeq, "a transaction commits later than those that began after it", |setup| {
        Box::pin(relay::late_commit(setup))
    }),
    experiment(
        Flaw::SkipLockedOnRows,
        "a relay freezes after it has claimed an order's creation, and the order is cancelled",
        |setup| Box::pin(relay::frozen_with_a_creation(setup)),
    ),
    experiment(Flaw::WokenOnly, "another writer commits an event and wakes no relay", |setup| {
        Box::pin(relay::no_wake_up(setup))
    }),
    experiment(
        Flaw::WakeBeforeCommit,
        "none; the poll is set to 20 s, so that wake-ups must be right",
        |setup| Box::pin(relay::woken_in_time(setup)),
    ),
    // What counts as published: a confirm, and nothing else, under an id that stays the same.
    experiment(Flaw::ConfirmsIgnored, "the broker freezes, is sent 20 messages, and is killed", |setup| {
        Box::pin(publisher::frozen_and_killed(setup))
    }),
    experiment(Flaw::UnroutableIgnored, "the queues of inventory and billing lose their binding", |setup| {
        Box::pin(publisher::unbound(setup))
    }),
    experiment(
        Flaw::ReturnTrustedToItsConfirm,
        "creations lose their binding while a batch of 60 of them and 60 cancellations is being sent",
        |setup| Box::pin(publisher::unbound_with_a_backlog(setup)),
    ),
    experiment(Flaw::NewIdPerAttempt, "the relay is killed between the confirm and the mark", |setup| {
        Box::pin(killed_at("relay-confirmed:kill", Some("orders"), setup))
    }),
    // The consumer: acknowledge after the commit, record with the effect, remember.
    experiment(Flaw::AckBeforeCommit, "a consumer is killed before its commit", |setup| {
        Box::pin(killed_at("effect-written:kill", None, setup))
    }),
    experiment(
        Flaw::DedupeOutsideTransaction,
        "a consumer is killed between \"processed\" and the effect",
        |setup| Box::pin(killed_at("inbox-recorded:kill", None, setup)),
    ),
    experiment(Flaw::ShortMemory, "all events are published again, a few seconds later", |setup| {
        Box::pin(consumers::published_again(setup))
    }),
    // The order write: one commit for the order and its event, which no client can cancel, side by side with others.
    experiment(Flaw::DualWrite, "the order service is killed after the order's commit", |setup| {
        Box::pin(killed_at("order-written:kill", None, setup))
    }),
    experiment(
        Flaw::CancellableBegin,
        "a client hangs up before the answer to its order's first statement arrives",
        |setup| Box::pin(order_write::hang_up_during_first_statement(setup)),
    ),
    experiment(
        Flaw::NotifyInTransaction,
        "two orders are placed at once, on a database whose commits wait for a standby",
        |setup| Box::pin(order_write::two_slow_commits(setup)),
    ),
];

/// How long a sabotage may go unnoticed, from the start of its system: [longer](testbed::longer) on a slow machine.
const NOTICE_DEADLINE: Duration = Duration::from_secs(300);

/// The result of an experiment.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    /// The expected invariants.
    pub invariants: &'static [&'static str],
    /// What broke in the sabotaged system.
    pub caught: Option<Breach>,
    /// What broke in the complete one: a false alarm.
    pub false_alarm: Option<Breach>,
    /// From the start of the systems until the sabotage was noticed.
    pub seconds: f64,
}

impl Finding {
    /// Whether the complete system held and the sabotaged one broke as expected, in time.
    pub fn is_as_expected(&self) -> bool {
        let expected = self.caught.as_ref().is_some_and(|breach| self.invariants.contains(&breach.invariant));
        expected
            && self.false_alarm.is_none()
            && self.seconds < testbed::longer(NOTICE_DEADLINE).as_secs_f64()
    }
}

impl Experiment {
    /// Runs both systems at the same time.
    ///
    /// # Errors
    /// When they cannot be set up, or the fault did not happen: the result is unknown then.
    pub async fn run(&self) -> Result<Finding> {
        let (name, invariants) = (self.flaw.name(), self.flaw.row().breaks);
        let complete = Setup { lab: true, ..Setup::default() };
        let sabotaged = leave_out(complete.clone(), self.flaw);
        let began = Instant::now();
        let timed = async { ((self.run)(sabotaged).await, began.elapsed().as_secs_f64()) };
        let (false_alarm, (caught, seconds)) = tokio::join!((self.run)(complete), timed);
        let caught = caught.with_context(|| format!("{name}, sabotaged"))?;
        let false_alarm = false_alarm.with_context(|| format!("{name}, complete"))?;
        Ok(Finding { name, invariants, caught, false_alarm, seconds })
    }
}
