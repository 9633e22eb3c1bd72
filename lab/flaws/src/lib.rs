//! The table of flaws: every step of the pattern that can be wrong on purpose, how it gets wrong, and what must break then.
//! A protection that is not part of the pattern is taken out by a diff in `lab/without` instead.
//!
//! A check that cannot fail proves nothing by passing. So the programs of `lab/flawed-services`, the experiments and drills of
//! `lab/demo` and the simulation all draw from this table, and tests hold the documentation to it.
//! [`confirms`] has what a publisher with a flaw concludes from a broker's answers, for the simulation.

pub mod confirms;

use Flaw::*;

/// A step that can be wrong on purpose. Its [`Row`] says what that means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    MarkBeforeConfirm,
    ConfirmsIgnored,
    NackTakenForConfirm,
    UnroutableIgnored,
    UnconsumedDropped,
    ReturnTrustedToItsConfirm,
    SilenceIgnored,
    NewIdPerAttempt,
    RefusalsBackOff,
    CursorOverSeq,
    SkipLockedOnRows,
    OlderEventIgnored,
    DirtyRead,
    WokenOnly,
    AckBeforeCommit,
    DedupeOutsideTransaction,
    CompetingConsumers,
    UnequalPrefetch,
    LaterEventsApplied,
    LogAcknowledgedEarly,
    InvisiblePassed,
    RefusalStopsLog,
    SlotShared,
    PartitionsChangedInUse,
    ShortMemory,
    AgeByOwnClock,
    StandbyNotAwaited,
    FsyncOff,
    BrokerFsyncOff,
    DiskLimitOff,
    DualWrite,
    PublishThenCommit,
    NotifyInTransaction,
    CancellableBegin,
    WakeBeforeCommit,
    PollOneByOne,
    RowLocks,
    DeleteOncePublished,
    TriggerNotify,
    ListenAlone,
}

/// How a step gets wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// `orders-lab`, `inventory-lab` and `billing-lab` run with one part replaced: `SABOTAGE` is the flaw's name.
    Part,
    /// `orders-variant` replaces the order service: `VARIANT` is the flaw's name (`docs/variants.md`).
    Variant,
    /// The services' own settings switch it off.
    Settings(&'static [(&'static str, &'static str)]),
    /// Settings of PostgreSQL switch it off.
    Database(&'static [(&'static str, &'static str)]),
    /// RabbitMQ's `advanced.config` switches it off.
    Broker(&'static str),
    /// Only in the simulation.
    InMemory,
}

/// What the simulation must report.
#[derive(Debug, Clone, Copy)]
pub struct Simulated {
    /// How many seeds the simulation needs at most, measured and rounded up generously.
    pub within_seeds: u64,
    /// The invariants of which the simulation reports one. A lost event can show as lost (I3), or by a later one that
    /// overtakes it (I6).
    pub breaks: &'static [&'static str],
    /// Whether the relays must read the write-ahead log.
    pub with_log: bool,
}

/// What is known about a flaw.
#[derive(Debug)]
pub struct Row {
    pub flaw: Flaw,
    /// The name on command lines, in tables and in `SABOTAGE` or `VARIANT`.
    pub name: &'static str,
    pub left_out: LeftOut,
    /// The invariants of `docs/guarantees.md` of which one breaks in a running system. A lost event can show as not delivered
    /// (I3) or as not drained (I8). `speed`: nothing is lost. Empty: a drill judges the flaw by its own claim.
    pub breaks: &'static [&'static str],
    /// What is different, as a clause.
    pub description: &'static str,
    /// `None`: not simulated.
    pub simulated: Option<Simulated>,
}

const NO_POLL: &[(&str, &str)] = &[("ORDERS_RELAY_POLL", "1h"), ("ORDERS_RELAY_FULL_SCAN", "1h")];

/// The log of all quorum queues is written and not synced.
const NO_SYNC: &str = "[{ra, [{wal_sync_method, none}]}].\n";

const NO_LIMIT: &str = "[{rabbit, [{disk_free_limit, 0}]}].\n";

/// All flaws, in the order of [`Flaw`].
pub static ALL: [Row; 40] = [
    part(MarkBeforeConfirm, "mark-before-confirm", &["I3"])
        .described("the publisher reports a batch as confirmed, and publishes it only afterwards")
        .simulated(20, &["I3", "I6"]),
    part(ConfirmsIgnored, "confirms-ignored", &["I3"])
        .described("the publisher reports a batch as confirmed without waiting for the broker's confirms")
        .simulated(50, &["I3", "I6"]),
    part(NackTakenForConfirm, "nack-taken-for-confirm", &["I3"])
        .described("the publisher reports a negatively acknowledged message as confirmed"),
    part(UnroutableIgnored, "unroutable-ignored", &["I3"])
        .described("the publisher reports a returned message as confirmed"),
    part(UnconsumedDropped, "unconsumed-dropped", &[])
        .described("the publisher reports `OrderConfirmed` as confirmed, and sends none"),
    part(ReturnTrustedToItsConfirm, "return-trusted-to-its-confirm", &["I3"])
        .described("the publisher attributes a return to the message whose confirm carried it")
        .simulated(2_000, &["I3", "I6"]),
    in_memory(SilenceIgnored, "silence-ignored")
        .described("the publisher trusts acks although some answers, and the returns on them, are missing")
        .simulated(10_000, &["I3", "I6"]),
    part(NewIdPerAttempt, "new-id-per-attempt", &["I4", "I5"])
        .described("the publisher gives a message a new id at each attempt")
        .simulated(50, &["I2"]),
    part(RefusalsBackOff, "refusals-back-off", &["I11"]).described(
        "events that no queue wants count as a busy broker: the relay pauses for longer each time",
    ),
    part(CursorOverSeq, "cursor-over-seq", &["I3", "I8"])
        .described("the relay reads on from where it stopped (`seq > last`), and not by state")
        .simulated(50, &["I6", "I8"]),
    part(SkipLockedOnRows, "skip-locked-on-rows", &["I6"])
        .described("the relay locks the event rows that it finds free, and no lanes")
        .simulated(200, &["I6"]),
    in_memory(OlderEventIgnored, "older-event-ignored")
        .described("a claim returns an event while an older one of its aggregate backs off")
        .simulated(200, &["I6"]),
    in_memory(DirtyRead, "dirty-read").described("a claim reads uncommitted events").simulated(
        50,
        &["I2"]),
    setting(WokenOnly, "woken-only", &["I3", "I8"]).described("the relay never polls").simulated(
        100,
        &["I8"]),
    part(AckBeforeCommit, "ack-before-commit", &["I3"])
        .described("the consumer acknowledges a group before it is applied")
        .simulated(20, &["I3"]),
    part(DedupeOutsideTransaction, "dedupe-outside-transaction", &["I3"])
        .described("the consumer commits \"processed\" before the effect")
        .simulated(100, &["I3"]),
    in_memory(CompetingConsumers, "competing-consumers")
        .described("all instances of a service consume at the same time")
        .simulated(100, &["I6"]),
    in_memory(UnequalPrefetch, "unequal-prefetch")
        .described("the instances of a service have different prefetches")
        .simulated(200, &["I6"]),
    in_memory(LaterEventsApplied, "later-events-applied")
        .described("the inbox applies an event although an older one of its aggregate is a dead letter")
        .simulated(200, &["I6"]),
    in_memory(LogAcknowledgedEarly, "log-acknowledged-early")
        .described("a relay acknowledges the log when it has claimed events, and not after their marks")
        .simulated_with_log(50, &["I3"]),
    in_memory(InvisiblePassed, "invisible-passed")
        .described("a relay passes events of the log whose commit is not visible yet")
        .simulated_with_log(50, &["I3"]),
    in_memory(RefusalStopsLog, "refusal-stops-log")
        .described("an event of the log that was refused stays until it is published")
        .simulated_with_log(50, &["I8"]),
    in_memory(SlotShared, "slot-shared")
        .described("relays read the log at the same time, and lock no lanes")
        .simulated_with_log(50, &["I6", "I7"]),
    in_memory(PartitionsChangedInUse, "partitions-changed-in-use")
        .described("the number of partitions is changed although its queues have messages or consumers")
        .simulated(100, &["I6", "I8"]),
    part(ShortMemory, "short-memory", &["I4"])
        .described("records of processed events are erased while their events can still be published again"),
    part(AgeByOwnClock, "age-by-own-clock", &["I3"])
        .described("the consumer drops events that are too old by the clock of its own machine"),
    in_memory(StandbyNotAwaited, "standby-not-awaited").described(
        "what was only read is published, answered and acknowledged, although the standby may not have it",
    )
    .simulated(200, &["I2"]),
    row(FsyncOff, "fsync-off", LeftOut::Database(&[("fsync", "off")]), &["I1"])
        .described("PostgreSQL answers a commit that is not on disk yet"),
    row(BrokerFsyncOff, "broker-fsync-off", LeftOut::Broker(NO_SYNC), &["I3"])
        .described("RabbitMQ's quorum queues confirm a message that is not on disk yet"),
    row(DiskLimitOff, "disk-limit-off", LeftOut::Broker(NO_LIMIT), &["I8"])
        .described("RabbitMQ raises no alarm before its disk is full"),
    variant(DualWrite, "dual-write", &["I2", "I3"])
        .described("the order is committed, and then its event is published"),
    variant(PublishThenCommit, "publish-then-commit", &["I5"])
        .described("the event is published, and then its order is committed"),
    variant(NotifyInTransaction, "notify-in-transaction", &["speed"])
        .described("NOTIFY runs in the transaction that writes the order and its event"),
    variant(CancellableBegin, "cancellable-begin", &["I1", "I2"])
        .described("the order is written with BEGIN on connections that are returned unchecked"),
    variant(WakeBeforeCommit, "wake-before-commit", &["I8"])
        .described("the relay is woken before the order is committed"),
    variant(PollOneByOne, "poll-one-by-one", &["speed"])
        .described("the relay polls each second, and publishes and marks one event at a time"),
    variant(RowLocks, "row-locks", &["I6"]).described("the relay locks the events themselves, and no lanes"),
    variant(DeleteOncePublished, "delete-once-published", &["I6"])
        .described("the relay locks the events themselves, and deletes what it has published"),
    variant(TriggerNotify, "trigger-notify", &["speed"])
        .described("a trigger wakes the relay, with NOTIFY for each row in the order's transaction"),
    variant(ListenAlone, "listen-alone", &["I8"])
        .described("a trigger wakes the relay, which does not poll and does not look when it listens again"),
];

const fn row(flaw: Flaw, name: &'static str, left_out: LeftOut, breaks: &'static [&'static str]) -> Row {
    Row { flaw, name, left_out, breaks, description: "", simulated: None }
}

const fn part(flaw: Flaw, name: &'static str, breaks: &'static [&'static str]) -> Row {
    row(flaw, name, LeftOut::Part, breaks)
}

const fn variant(flaw: Flaw, name: &'static str, breaks: &'static [&'static str]) -> Row {
    row(flaw, name, LeftOut::Variant, breaks)
}

const fn setting(flaw: Flaw, name: &'static str, breaks: &'static [&'static str]) -> Row {
    row(flaw, name, LeftOut::Settings(NO_POLL), breaks)
}

const fn in_memory(flaw: Flaw, name: &'static str) -> Row {
    row(flaw, name, LeftOut::InMemory, &[])
}

impl Row {
    const fn described(self, description: &'static str) -> Self {
        Self { description, ..self }
    }

    const fn simulated(self, within_seeds: u64, breaks: &'static [&'static str]) -> Self {
        Self { simulated: Some(Simulated { within_seeds, breaks, with_log: false }), ..self }
    }

    /// By relays that read the write-ahead log.
    const fn simulated_with_log(self, within_seeds: u64, breaks: &'static [&'static str]) -> Self {
        Self { simulated: Some(Simulated { within_seeds, breaks, with_log: true }), ..self }
    }
}

impl Flaw {
    pub fn row(self) -> &'static Row {
        &ALL[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The flaws that the simulation has, each with what it must report.
    pub fn simulated() -> impl Iterator<Item = (Self, Simulated)> {
        ALL.iter().filter_map(|row| Some((row.flaw, row.simulated?)))
    }

    /// The names of the flaws that are left out in this way.
    pub fn names(is_meant: impl Fn(LeftOut) -> bool) -> impl Iterator<Item = &'static str> {
        ALL.iter().filter(move |row| is_meant(row.left_out)).map(|row| row.name)
    }

    /// The flaw of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|row| row.name == name).map(|row| row.flaw)
    }

    /// Whether events are in an outbox before they are published.
    pub fn has_outbox(self) -> bool {
        !matches!(self, DualWrite | PublishThenCommit)
    }

    /// Whether events leave the outbox when they are published.
    pub fn deletes_events(self) -> bool {
        self == DeleteOncePublished
    }
}

#[test]
fn rows_are_in_the_order_of_the_flaws() {
    for (index, row) in ALL.iter().enumerate() {
        assert_eq!(row.flaw as usize, index, "{}", row.name);
    }
}
