use crate::random_source::RandomSource;

/// What can go wrong in the simulated world. Each fault has a rate of its own, drawn for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// All faults with their highest rate: one in so many chances, in a seed that has the fault.
    pub const ALL: [(Self, u32); 35] = [
        (ConfirmLost, 10),
        (ConfirmDelayed, 8),
        (ConfirmReordered, 3),
        (Nacked, 12),
        (ReturnOnAnother, 2),
        (ReturnMissed, 2),
        (PublisherDisconnected, 12),
        (LateArrival, 2),
        (DuplicateDelivered, 20),
        (AlwaysRefused, 60),
        (TooLarge, 120),
        (SlowBroker, 12),
        (BrokerUnavailable, 60),
        (Unroutable, 30),
        (DatabaseUnavailable, 60),
        (DatabaseError, 20),
        (CommitUnknown, 10),
        (CommitLost, 10),
        (LateCommit, 4),
        (WakeLost, 2),
        (WakeEarly, 3),
        (WriterCrash, 40),
        (RelayCrash, 40),
        (SessionLingers, 3),
        (RelayFrozen, 80),
        (ConsumerCrash, 40),
        (ConsumerFrozen, 80),
        (ConsumerDisconnected, 40),
        (AckLost, 15),
        (DeadLetterUnknown, 3),
        (HandlerTemporary, 12),
        (HandlerUnexpected, 15),
        (HandlerPermanent, 60),
        (HandlerPanic, 25),
        (HandlerTooSlow, 60),
    ];

    /// The number of faults.
    pub const COUNT: usize = Self::ALL.len();
}

/// The rates of a seed's faults, and how often each was injected.
///
/// Each seed leaves out about half of the faults. With all of them in every seed, faults hide each other: a relay that
/// crashes all the time never reaches the point at which a lost return would matter.
pub(crate) struct FaultInjector {
    /// Injected at one in so many chances; 0 means never.
    one_in: [u32; Fault::COUNT],
    pub(crate) injected: [u64; Fault::COUNT],
    /// `false` after the fault period.
    pub(crate) enabled: bool,
}

impl FaultInjector {
    /// Draws which faults a seed has, and their rates.
    pub(crate) fn draw(random: &mut RandomSource) -> Self {
        let mut one_in = [0; Fault::COUNT];
        for (fault, highest_rate) in Fault::ALL {
            if random.one_in(2) {
                one_in[fault as usize] = highest_rate * random.pick(&[1, 1, 3, 10]);
            }
        }
        Self { one_in, injected: [0; Fault::COUNT], enabled: true }
    }

    /// Injects this fault never. The others keep their rates.
    pub(crate) fn leave_out(&mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            self.one_in[fault as usize] = 0;
        }
    }

    /// Draws whether to inject this fault now, and counts it if so.
    pub(crate) fn injects(&mut self, fault: Fault, random: &mut RandomSource) -> bool {
        let one_in = self.one_in[fault as usize];
        let injects = self.enabled && one_in > 0 && random.one_in(one_in);
        if injects {
            self.injected[fault as usize] += 1;
        }
        injects
    }

    /// Counts a fault that was drawn elsewhere.
    pub(crate) fn count(&mut self, fault: Fault) {
        self.injected[fault as usize] += 1;
    }
}
