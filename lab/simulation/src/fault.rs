use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::random_source::RandomSource;

/// What can go wrong in the simulated world. The rate of each fault is drawn for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Fault {
    /// Some confirms of a batch never arrive.
    ConfirmLost,
    /// The confirms of a batch arrive late, perhaps after the deadline.
    ConfirmDelayed,
    /// Confirms arrive in another order than the messages were sent in.
    ConfirmReordered,
    /// The broker sends a negative acknowledgement, and may have put the message into some of its queues.
    Nacked,
    /// A returned message arrives with another message's confirm.
    ReturnOnAnother,
    /// A returned message arrives with a confirm whose deadline passed a moment before.
    ReturnMissed,
    /// The publishing connection breaks in the middle of a batch.
    PublisherDisconnected,
    /// A message that was sent over a broken connection arrives seconds later.
    LateArrival,
    /// The broker itself delivers a message twice.
    DuplicateDelivered,
    /// The broker returns one event at every attempt.
    AlwaysRefused,
    /// An event is larger than the publisher sends.
    TooLarge,
    /// The broker takes seconds for each batch, for the whole run.
    SlowBroker,
    /// The broker is unavailable for a while.
    BrokerUnavailable,
    /// The bindings are missing for a while.
    Unroutable,
    /// The databases are unavailable for a while.
    DatabaseUnavailable,
    /// The standby of the outbox's database receives a commit seconds later.
    StandbyLags,
    /// Commits that wait for the standby become visible without it.
    StandbyWaitCancelled,
    /// The standby takes over, and has not received the last commits.
    FailOver,
    /// A statement fails.
    DatabaseError,
    /// A commit succeeds, and the client gets an error.
    CommitUnknown,
    /// A commit fails, and the client gets an error.
    CommitLost,
    /// A row is committed long after its `seq` was drawn.
    LateCommit,
    /// A wake-up is lost.
    WakeLost,
    /// A wake-up arrives before the commit.
    WakeEarly,
    /// A writer crashes.
    WriterCrash,
    /// A relay crashes.
    RelayCrash,
    /// A relay or a consumer is gone, and the database or the broker notices it only later.
    SessionLingers,
    /// A relay freezes, perhaps for longer than the database keeps its idle session.
    RelayFrozen,
    /// A consumer crashes.
    ConsumerCrash,
    /// A consumer freezes, and the broker closes its channel.
    ConsumerFrozen,
    /// A consuming connection breaks.
    ConsumerDisconnected,
    /// An acknowledgement is sent and never arrives.
    AckLost,
    /// Saving a dead letter fails. It may have been saved.
    DeadLetterUnknown,
    /// All relays and consumers are restarted with another number of partitions.
    PartitionsChanged,
    /// A handler reports a temporary failure.
    HandlerTemporary,
    /// A handler reports a failure of unknown cause.
    HandlerUnexpected,
    /// A handler reports that the event can never be applied.
    HandlerPermanent,
    /// A handler panics.
    HandlerPanic,
    /// A handler exceeds its deadline.
    HandlerTooSlow,
}

use Fault::*;

impl Fault {
    /// The highest rate: one in so many chances, in a seed that has the fault.
    fn highest_rate(self) -> u32 {
        match self {
            ReturnOnAnother | ReturnMissed | LateArrival | WakeLost => 2,
            ConfirmReordered | WakeEarly | SessionLingers | DeadLetterUnknown => 3,
            LateCommit => 4,
            ConfirmDelayed => 8,
            ConfirmLost | CommitUnknown | CommitLost | StandbyLags => 10,
            Nacked | PublisherDisconnected | SlowBroker | HandlerTemporary => 12,
            AckLost | HandlerUnexpected => 15,
            DuplicateDelivered | DatabaseError => 20,
            HandlerPanic => 25,
            Unroutable | StandbyWaitCancelled => 30,
            WriterCrash | RelayCrash | ConsumerCrash | ConsumerDisconnected => 40,
            AlwaysRefused | BrokerUnavailable | DatabaseUnavailable | HandlerPermanent | HandlerTooSlow
            | FailOver | PartitionsChanged => 60,
            RelayFrozen | ConsumerFrozen => 80,
            TooLarge => 120,
        }
    }
}

/// The rates of a seed's faults, and how often each was injected.
///
/// Each seed leaves out about half of the faults. With all of them in every seed, faults hide each other: a relay that
/// crashes all the time never reaches the point at which a lost return would matter.
pub(crate) struct FaultInjector {
    /// Injected at one in so many chances. A fault without a rate is never injected.
    one_in: BTreeMap<Fault, u32>,
    pub(crate) injected: BTreeMap<Fault, u64>,
    /// `false` after the fault period.
    pub(crate) enabled: bool,
}

impl FaultInjector {
    /// Draws which of the possible faults a seed has, and their rates. Without one of them, the others keep their rates.
    pub(crate) fn draw(random: &mut RandomSource, is_possible: impl Fn(Fault) -> bool) -> Self {
        let mut one_in = BTreeMap::new();
        for fault in Fault::value_variants() {
            if random.one_in(2) {
                one_in.insert(*fault, fault.highest_rate() * random.pick(&[1, 1, 3, 10]));
            }
        }
        one_in.retain(|fault, _| is_possible(*fault));
        Self { one_in, injected: BTreeMap::new(), enabled: true }
    }

    /// Draws whether to inject this fault now, and counts it if so.
    pub(crate) fn injects(&mut self, fault: Fault, random: &mut RandomSource) -> bool {
        let rate = self.one_in.get(&fault).filter(|_| self.enabled);
        let injects = rate.is_some_and(|one_in| random.one_in(*one_in));
        if injects {
            self.count(fault);
        }
        injects
    }

    /// Counts a fault that was drawn elsewhere.
    pub(crate) fn count(&mut self, fault: Fault) {
        *self.injected.entry(fault).or_default() += 1;
    }
}
