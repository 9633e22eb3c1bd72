//! The complete state of a simulated world.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use events::Event;
use flaws::Flaw;
use messaging::{ClaimedEvent, Wake};
use uuid::Uuid;

use crate::{
    fault::{Fault, FaultInjector},
    history::{Actor, History, SERVICES},
    judge::Judge,
    log::Log,
    outbox_table::OutboxTable,
    queue::BrokerState,
    random_source::RandomSource,
    sometimes::Sometimes,
    standby::Standby,
};

/// How a run differs from one in which the complete system polls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The protection that is left out.
    pub flaw: Option<Flaw>,
    /// The fault that is never injected.
    pub without: Option<Fault>,
    /// The relays read the write-ahead log.
    pub with_log: bool,
    /// The steps are kept.
    pub with_history: bool,
}

pub(crate) struct State {
    pub(crate) now: Duration,
    pub(crate) random: RandomSource,
    pub(crate) faults: FaultInjector,
    pub(crate) history: History,
    pub(crate) judge: Judge,
    pub(crate) aggregates: Vec<Aggregate>,
    pub(crate) outbox: OutboxTable,
    /// `None`: relays poll.
    pub(crate) log: Option<Log>,
    pub(crate) standby: Option<Standby>,
    /// Commits that wait for the standby: nobody sees them, and they keep their aggregate locked. When each is visible, its `seq`
    /// and its aggregate.
    pub(crate) waiting: Vec<(Duration, i64, usize)>,
    /// How often the standby has taken over. A session ends with its epoch.
    pub(crate) epoch: u64,
    pub(crate) broker: BrokerState,
    pub(crate) inboxes: [InboxTable; SERVICES],
    pub(crate) wakes: BTreeMap<usize, Wake>,
    pub(crate) databases_unavailable_until: Duration,
    /// The events that each relay has claimed and not settled: a fault may cause one more copy of each.
    pub(crate) claimed: BTreeMap<Actor, Vec<Uuid>>,
    /// How many of them each relay has sent.
    pub(crate) sent: BTreeMap<Actor, usize>,
    /// The relay that claimed each event last.
    pub(crate) last_claim: BTreeMap<Uuid, Actor>,
    pub(crate) reached: BTreeMap<Sometimes, u64>,
}

/// A row of the writers' own table. Transactions that change the same aggregate wait for each other on it.
pub(crate) struct Aggregate {
    pub(crate) id: Uuid,
    pub(crate) version: i32,
    pub(crate) locked: bool,
}

/// A consuming service's database: its table `processed_events`, and the transactions that are open on it.
#[derive(Default)]
pub(crate) struct InboxTable {
    /// `processed_events`: inserted by a transaction that is still open, or committed (`None`).
    pub(crate) processed: BTreeMap<Uuid, Option<u64>>,
    pub(crate) last_transaction: u64,
    /// Events that this service can never apply.
    pub(crate) never_applicable: BTreeSet<Uuid>,
    /// The table of dead letters, none of them resolved: the ids of an event and of its aggregate, in the order of saving.
    pub(crate) dead_letters: Vec<(Uuid, Uuid)>,
    /// How many attempts at an event have begun and not ended.
    pub(crate) attempts: BTreeMap<Uuid, u32>,
}

impl InboxTable {
    /// Whether an event waits behind an older dead letter of its aggregate, as in the SQL function `inbox_first_time`.
    pub(crate) fn is_behind(&self, event: &Event) -> bool {
        let saved_before_it = self.dead_letters.iter().take_while(|(id, _)| *id != event.id);
        self.processed.get(&event.id) != Some(&None)
            && saved_before_it.into_iter().any(|(_, aggregate)| *aggregate == event.aggregate_id)
    }
}

impl State {
    /// The state at the beginning of a seed's run.
    pub(crate) fn new(seed: u64, options: Options) -> Self {
        let Options { flaw, without, with_log, with_history } = options;
        let mut random = RandomSource::new(seed);
        let mut faults = FaultInjector::draw(&mut random, |fault| {
            Some(fault) != without && !(with_log && fault == Fault::FailOver)
        });
        let partitions = random.pick(&[1, 1, 2, 4]);
        let has_standby = with_log || random.one_in(2);
        let broker = BrokerState {
            competing_consumers: flaw == Some(Flaw::CompetingConsumers),
            slow: faults.injects(Fault::SlowBroker, &mut random),
            partitions,
            wanted_partitions: partitions,
            ..BrokerState::default()
        };
        let aggregates = (0..random.between(1, 8))
            .map(|_| Aggregate { id: random.id(), version: 0, locked: false })
            .collect();
        Self {
            now: Duration::ZERO,
            random,
            faults,
            history: History { steps: 0, entries: with_history.then(Vec::new) },
            judge: Judge::default(),
            aggregates,
            outbox: OutboxTable { flaw, ..OutboxTable::default() },
            log: with_log.then(Log::default),
            standby: has_standby.then(Standby::default),
            waiting: vec![],
            epoch: 0,
            broker,
            inboxes: [InboxTable::default(), InboxTable::default()],
            wakes: BTreeMap::new(),
            databases_unavailable_until: Duration::ZERO,
            claimed: BTreeMap::new(),
            sent: BTreeMap::new(),
            last_claim: BTreeMap::new(),
            reached: BTreeMap::new(),
        }
    }

    /// Draws whether to inject this fault now.
    pub(crate) fn injects(&mut self, fault: Fault) -> bool {
        let injects = self.faults.injects(fault, &mut self.random);
        if injects {
            self.note(Actor::Environment, "fault", || format!("{fault:?}"));
        }
        injects
    }

    /// The outbox, after the database has ended the sessions that it ends by now.
    pub(crate) fn outbox_now(&mut self) -> &mut OutboxTable {
        self.outbox.end_idle_sessions(self.now);
        &mut self.outbox
    }

    /// Makes a writer's commit visible.
    pub(crate) fn commit(&mut self, actor: Actor, seq: i64, aggregate: usize) {
        self.aggregates[aggregate].version += 1;
        if let Some(row) = self.outbox.rows.get_mut(&seq) {
            row.committed = true;
            self.judge.committed(row);
            let (id, version) = (row.id, row.version);
            self.note(actor, "committed", || format!("{id}, version {version}"));
        }
    }

    /// Records which events a relay has claimed.
    pub(crate) fn hand_out(&mut self, actor: Actor, events: &[ClaimedEvent]) {
        for event in events {
            let before = self.last_claim.insert(event.message.id, actor);
            if before.is_some_and(|before| before != actor) {
                self.reach(Sometimes::LaneHandedOver);
            }
        }
        self.sent.insert(actor, 0);
        self.claimed.insert(actor, events.iter().map(|event| event.message.id).collect());
        self.note(actor, "claimed", || {
            format!("{:?}", events.iter().map(|event| event.seq).collect::<Vec<_>>())
        });
    }

    /// Counts a state that was reached.
    pub(crate) fn reach(&mut self, state: Sometimes) {
        *self.reached.entry(state).or_default() += 1;
    }

    /// Adds a step to the history.
    pub(crate) fn note(&mut self, actor: Actor, step: &'static str, detail: impl FnOnce() -> String) {
        self.history.add(self.now, actor, step, detail);
    }

    /// Allows one more copy of each event that this actor has claimed: a fault affects it.
    pub(crate) fn allow_duplicates_of_claimed(&mut self, actor: Actor) {
        if let Some(claimed) = self.claimed.get(&actor) {
            self.judge.allow_duplicates(claimed.iter().copied());
        }
    }

    pub(crate) fn broker_is_unavailable(&self) -> bool {
        self.now < self.broker.unavailable_until
    }
}
