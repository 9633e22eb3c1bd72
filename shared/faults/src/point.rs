/// Where a process can be stopped, frozen or killed: before and after each step that a promise depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A request was read and priced; nothing is written.
    OrderUnwritten,
    /// The order and its event are committed; the relay is not woken, the client not answered.
    OrderWritten,
    /// The relay holds lanes and has read what is due; nothing is published.
    RelayClaimed,
    /// Half of a batch is on the wire.
    BatchHalfSent,
    /// All of a batch is on the wire; no confirm has been looked at.
    BatchSent,
    /// The broker has confirmed; nothing is marked.
    RelayConfirmed,
    /// Everything is marked; the transaction is open.
    RelayMarked,
    /// The marks are committed.
    RelayCommitted,
    /// A group of deliveries is in hand; no transaction has begun.
    GroupReceived,
    /// The events are recorded as processed; their effects are not written, nothing is committed.
    InboxRecorded,
    /// The effects are written; nothing is committed.
    EffectWritten,
    /// The effects are committed; nothing is acknowledged.
    EffectCommitted,
    /// The group is acknowledged.
    GroupAcknowledged,
    /// A payment is in hand; the provider is not asked yet.
    PaymentUnasked,
    /// The provider has answered, and what it did is done; nothing is written of it.
    PaymentAnswered,
    /// A message that can never be applied is in the dead letters, and still in its queue.
    DeadLetterKept,
    /// A dead letter is committed to the table; it is still in the queue of dead letters.
    DeadLetterStored,
}

impl Point {
    /// All of them, in the order in which an event passes them.
    pub const ALL: [Self; 17] = [
        Self::OrderUnwritten,
        Self::OrderWritten,
        Self::RelayClaimed,
        Self::BatchHalfSent,
        Self::BatchSent,
        Self::RelayConfirmed,
        Self::RelayMarked,
        Self::RelayCommitted,
        Self::GroupReceived,
        Self::InboxRecorded,
        Self::EffectWritten,
        Self::EffectCommitted,
        Self::GroupAcknowledged,
        Self::PaymentUnasked,
        Self::PaymentAnswered,
        Self::DeadLetterKept,
        Self::DeadLetterStored,
    ];

    /// What `DRILL_POINT` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OrderUnwritten => "order-unwritten",
            Self::OrderWritten => "order-written",
            Self::RelayClaimed => "relay-claimed",
            Self::BatchHalfSent => "batch-half-sent",
            Self::BatchSent => "batch-sent",
            Self::RelayConfirmed => "relay-confirmed",
            Self::RelayMarked => "relay-marked",
            Self::RelayCommitted => "relay-committed",
            Self::GroupReceived => "group-received",
            Self::InboxRecorded => "inbox-recorded",
            Self::EffectWritten => "effect-written",
            Self::EffectCommitted => "effect-committed",
            Self::GroupAcknowledged => "group-acknowledged",
            Self::PaymentUnasked => "payment-unasked",
            Self::PaymentAnswered => "payment-answered",
            Self::DeadLetterKept => "dead-letter-kept",
            Self::DeadLetterStored => "dead-letter-stored",
        }
    }
}
