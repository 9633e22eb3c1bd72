//! One seed, from the first event to rest.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use crate::{
    Mutant, Violation,
    dice::Dice,
    fault::{Fault, Faults},
    history::History,
    inbox::Inbox,
    judge::Judge,
    lives::Lives,
    outbox_rows::Outbox,
    queues::Broker,
    rest,
    weather::{TICK, heal, worsen},
    world::{State, World},
    writer::Aggregate,
};

/// How long a healed world may take to come to rest. The longest wait of an event that was refused is five minutes, and
/// one that is refused for ever is parked after twenty.
const PATIENCE: Duration = Duration::from_secs(400);
const PATIENCE_FOR_PARKING: Duration = Duration::from_secs(4_000);

/// How long a relay or a consumer may take to stop.
const STOPPING: Duration = Duration::from_secs(120);

/// What became of one seed.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Of the whole history: two runs of one seed have the same.
    pub hash: u64,
    /// Entries of the history.
    pub steps: u64,
    /// Events that were committed.
    pub events: usize,
    /// Events that were marked as published.
    pub published: usize,
    /// Copies that the broker got beyond the first.
    pub duplicates: usize,
    /// Events that are parked, and messages in dead letters.
    pub set_aside: usize,
    /// How often each fault struck, in the order of [`Fault::ALL`].
    pub struck: [u64; Fault::COUNT],
    /// How long it took in the simulated world.
    pub virtual_time: Duration,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// The history, if it was asked for.
    pub history: Vec<String>,
}

/// Runs one seed on this thread.
///
/// # Errors
/// When there is no runtime to be had.
pub fn run(seed: u64, mutant: Option<Mutant>, keep_history: bool) -> std::io::Result<Report> {
    // Back-off and the choice of lanes in the real code draw from this thread's generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let (world, virtual_time) = runtime.block_on(async {
        let began = Instant::now();
        let world = Arc::new(World::new(state(seed, mutant, keep_history), mutant));
        live(&world).await;
        (world, began.elapsed())
    });
    // Drops every task, and with it every reference to the world but ours.
    drop(runtime);
    let Some(world) = Arc::into_inner(world) else {
        return Err(std::io::Error::other("somebody still holds the world"));
    };
    let state = world.into_state();
    let parked = state.outbox.rows.values().filter(|row| row.parked).count();
    let (hash, steps, history) = state.history.finish();
    Ok(Report {
        seed,
        hash,
        steps,
        events: state.judge.events(),
        published: state.judge.published(),
        duplicates: state.judge.duplicates,
        set_aside: parked + state.judge.set_aside_count(),
        struck: state.faults.struck,
        virtual_time,
        violation: state.judge.violation,
        history,
    })
}

fn state(seed: u64, mutant: Option<Mutant>, keep_history: bool) -> State {
    let mut dice = Dice::new(seed);
    let mut faults = Faults::draw(&mut dice);
    let mut broker = Broker::default();
    broker.competing = mutant == Some(Mutant::CompetingConsumers);
    broker.slow = faults.strikes(Fault::SlowBroker, &mut dice);
    let aggregates = (0..dice.between(1, 8)).map(|_| Aggregate::new(dice.id())).collect();
    State {
        now: Duration::ZERO,
        dice,
        faults,
        history: History::new(keep_history),
        judge: Judge::default(),
        aggregates,
        outbox: Outbox::default(),
        broker,
        inboxes: [Inbox::default(), Inbox::default()],
        wakes: BTreeMap::new(),
        database_away: Duration::ZERO,
        in_hand: BTreeMap::new(),
    }
}

async fn live(world: &Arc<World>) {
    let mut lives = Lives::begin(world);
    let storm = world.lock().dice.millis(2_000, 30_000);
    let healed_at = Instant::now() + storm;
    while Instant::now() < healed_at && !is_broken(world) {
        sleep(TICK).await;
        worsen(world, &lives);
    }
    heal(world);
    // No more events: what is there now is what has to arrive.
    for writer in &mut lives.writers {
        let _ = timeout(STOPPING, writer).await;
    }
    let cursed = {
        let broker = &world.lock().broker;
        !broker.always_refused.is_empty() || !broker.too_large.is_empty()
    };
    let patience = if cursed { PATIENCE_FOR_PARKING } else { PATIENCE };
    let deadline = Instant::now() + patience;
    while !has_come_to_rest(world, deadline, patience) {
        sleep(TICK * 5).await;
    }
    if !is_broken(world) {
        stop(world, lives).await;
    }
}

/// Whether there is nothing left to wait for: everything is done, or it will not be.
fn has_come_to_rest(world: &World, deadline: Instant, patience: Duration) -> bool {
    let mut state = world.lock();
    state.broker_housekeeping();
    match rest::backlog(&state) {
        Ok(()) => rest::nothing_is_missing(&mut state),
        Err(missing) if Instant::now() >= deadline => {
            state.judge.broken(false, format!("I8: {patience:?} after healing, {missing}"));
        }
        Err(_) => return state.judge.violation.is_some(),
    }
    true
}

/// Everybody can be stopped, and nobody keeps lanes that nobody works on.
async fn stop(world: &Arc<World>, lives: Lives) {
    world.stop.cancel();
    for worker in lives.workers {
        if !matches!(timeout(STOPPING, worker).await, Ok(Ok(()))) {
            return world.lock().judge.broken(false, "I8: somebody did not stop");
        }
    }
    sleep(crate::outbox_rows::IDLE_LIMIT).await;
    let mut state = world.lock();
    let state = &mut *state;
    state.outbox.end_idle_sessions(state.now);
    if let Some(session) = state.outbox.sessions.values().next() {
        let what = format!("I9: lanes {:?} are still held by {}", session.lanes, session.who);
        state.judge.broken(false, what);
    }
}

fn is_broken(world: &World) -> bool {
    world.lock().judge.violation.is_some()
}
