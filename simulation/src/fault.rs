use crate::dice::Dice;

/// What can go wrong in the simulated world, each with a rate of its own, drawn anew for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Some confirms of a batch never come.
    ConfirmLost,
    /// The confirms of a batch come late, perhaps past the deadline.
    ConfirmDelayed,
    /// Confirms come in another order than the messages were sent in.
    ConfirmReordered,
    /// The broker refuses a message, having put it into some queues or none.
    Nacked,
    /// A message comes back on another message's confirm.
    ReturnOnAnother,
    /// A message comes back on a confirm that has been given up a moment before.
    ReturnUnheard,
    /// The publishing connection breaks in the middle of a batch.
    PublisherCut,
    /// What was sent over a broken connection arrives seconds later.
    LateArrival,
    /// The broker delivers a message twice of itself.
    DuplicateDelivered,
    /// An event that the broker refuses whenever it is tried.
    AlwaysRefused,
    /// An event that is too large to be sent.
    TooLarge,
    /// A broker that takes seconds for each batch, and stays like that.
    SlowBroker,
    /// The broker is away for a while.
    BrokerAway,
    /// The bindings are gone for a while.
    Unroutable,
    /// The database is away for a while.
    DatabaseAway,
    /// A statement fails.
    DatabaseError,
    /// A commit happens, and whoever asked for it hears an error.
    CommitUnknown,
    /// A commit does not happen, and an error says so.
    CommitLost,
    /// A row is committed long after its number was drawn.
    LateCommit,
    /// A wake-up is lost.
    WakeLost,
    /// A wake-up comes before the commit.
    WakeEarly,
    /// A writer dies.
    WriterCrash,
    /// A relay dies.
    RelayCrash,
    /// A relay or a consumer is gone, and its session lingers: the database or the broker notices later.
    SessionLingers,
    /// A relay freezes for longer than the database lets its session idle.
    RelayFrozen,
    /// A consumer dies.
    ConsumerCrash,
    /// A consumer freezes; its session is given to another.
    ConsumerFrozen,
    /// A consuming session breaks.
    SessionLost,
    /// An acknowledgement is sent and never arrives.
    AckLost,
    /// A dead letter is not confirmed, whether or not it was kept.
    DeadLetterUnknown,
    /// A handler says that the trouble will pass.
    HandlerTemporary,
    /// A handler fails in a way that nobody understands.
    HandlerUnexpected,
    /// A handler says that the event can never be applied.
    HandlerPermanent,
    /// A handler panics.
    HandlerPanic,
    /// A handler takes longer than it may.
    HandlerTooSlow,
}

use Fault::*;

impl Fault {
    /// All of them, with how rare they are when a seed has them: once in so many chances, at the most frequent.
    pub const ALL: [(Self, u32); 35] = [
        (ConfirmLost, 10),
        (ConfirmDelayed, 8),
        (ConfirmReordered, 3),
        (Nacked, 12),
        (ReturnOnAnother, 2),
        (ReturnUnheard, 2),
        (PublisherCut, 12),
        (LateArrival, 2),
        (DuplicateDelivered, 20),
        (AlwaysRefused, 60),
        (TooLarge, 120),
        (SlowBroker, 12),
        (BrokerAway, 60),
        (Unroutable, 30),
        (DatabaseAway, 60),
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
        (SessionLost, 40),
        (AckLost, 15),
        (DeadLetterUnknown, 3),
        (HandlerTemporary, 12),
        (HandlerUnexpected, 15),
        (HandlerPermanent, 60),
        (HandlerPanic, 25),
        (HandlerTooSlow, 60),
    ];

    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
}

/// Which faults a seed has, and how often each has struck.
///
/// Each seed leaves out about half of the kinds. With everything on everywhere, faults hide each other: a relay that
/// dies all the time never comes to the point at which a lost return would matter.
pub(crate) struct Faults {
    /// One in so many; 0 is never.
    one_in: [u32; Fault::COUNT],
    pub(crate) struck: [u64; Fault::COUNT],
    /// Off once the world has healed.
    pub(crate) raging: bool,
}

impl Faults {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let mut one_in = [0; Fault::COUNT];
        for (fault, most) in Fault::ALL {
            if dice.one_in(2) {
                one_in[fault as usize] = most * dice.pick(&[1, 1, 3, 10]);
            }
        }
        Self { one_in, struck: [0; Fault::COUNT], raging: true }
    }

    /// Whether this fault strikes now. Counted if so.
    pub(crate) fn strikes(&mut self, fault: Fault, dice: &mut Dice) -> bool {
        let one_in = self.one_in[fault as usize];
        let strikes = self.raging && one_in > 0 && dice.one_in(one_in);
        if strikes {
            self.struck[fault as usize] += 1;
        }
        strikes
    }

    /// Counts a fault that was decided elsewhere.
    pub(crate) fn count(&mut self, fault: Fault) {
        self.struck[fault as usize] += 1;
    }
}
