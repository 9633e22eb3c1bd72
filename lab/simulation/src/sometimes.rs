use clap::ValueEnum;

/// A rare state that a run of many seeds has to reach. What the judge says about a state that no seed has reached is worth
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Sometimes {
    /// A return came with the confirm of another message.
    ReturnOnNeighboursConfirm,
    /// A relay left events for its next step, because this one had taken too long.
    WaveCutAtDeadline,
    /// A relay claimed an event that another one had claimed and not marked.
    LaneHandedOver,
    /// The database ended the session of a relay that had frozen, and the relay continued.
    FrozenSessionEnded,
    /// A relay tried a write before it published again what it could not mark.
    WriteTriedAfterFailedMarks,
    /// An event was parked.
    EventParked,
    /// A standby received messages after another instance of its service.
    StandbyTookOver,
    /// A message whose event was applied before was recognized.
    DuplicateDropped,
    /// A group took too long, and was halved.
    GroupHalved,
    /// An event was set aside behind a dead letter.
    SetAsideBehind,
    /// A claim waited for the standby.
    StandbyAwaited,
    /// A fail-over lost a commit that was visible.
    CommitLostAtFailOver,
    /// The number of partitions was changed.
    PartitionsChanged,
    /// It was not, because the queues of the recorded number stayed in use.
    PartitionsKept,
}

impl Sometimes {
    /// From this number of seeds on, a run has to reach each of them. The rarest, a halved group, is reached twenty times in as many.
    pub const SEEDS: u64 = 2_000;
}
