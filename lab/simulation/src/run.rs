//! The run of one seed: a fault period, then time without faults until nothing is pending.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use crate::{
    broker_actions::run_due_work,
    environment::{Processes, TICK_INTERVAL, stop_faults, tick},
    fault::Fault,
    history::{Entry, SERVICES},
    outbox_table::IDLE_LIMIT,
    process::World,
    sometimes::Sometimes,
    state::{Options, State},
};

/// The deadline for quiescence after the fault period. The longest back-off of a refused event is five minutes.
const QUIESCENCE_DEADLINE: Duration = Duration::from_secs(400);

/// The same if an event is refused at every attempt: it is parked at the end of a schedule of up to nineteen minutes.
const QUIESCENCE_DEADLINE_WITH_PARKING: Duration = Duration::from_secs(4_000);

const QUIESCENCE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The deadline for a process to stop.
const STOP_DEADLINE: Duration = Duration::from_secs(120);

/// The result of one seed.
#[derive(Debug, Clone)]
pub struct Report {
    pub seed: u64,
    /// The numbers of steps, of committed events, of those that were marked as published, of copies that the broker received
    /// after the first one, and of parked events and dead letters.
    pub counts: [u64; 5],
    /// How often each fault was injected.
    pub injected: BTreeMap<Fault, u64>,
    /// How often each state was reached.
    pub reached: BTreeMap<Sometimes, u64>,
    /// The duration by the simulated clock.
    pub simulated_time: Duration,
    /// The first violation: the number of the invariant, and how it was violated.
    pub violation: Option<String>,
    /// The steps, if they were kept.
    pub history: Vec<Entry>,
}

/// Runs one seed on this thread.
///
/// # Errors
/// When the runtime cannot be built.
pub fn run(seed: u64, options: Options) -> std::io::Result<Report> {
    // The real code draws its back-off and its first lane from this thread's generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let (world, simulated_time) = runtime.block_on(async {
        let began = Instant::now();
        let world = Arc::new(World::new(State::new(seed, options)));
        simulate(&world).await;
        (world, began.elapsed())
    });
    // Drops all tasks, and with them all other references to the world.
    drop(runtime);
    let Some(world) = Arc::into_inner(world) else {
        return Err(std::io::Error::other("a task still references the world"));
    };
    let mut state = world.into_state();
    let parked = state.outbox.rows.values().filter(|row| row.parked).count();
    if parked > 0 {
        state.reach(Sometimes::EventParked);
    }
    let State { history, judge, faults, reached, .. } = state;
    let set_aside = parked + judge.set_aside_count();
    let counts = [judge.event_count(), judge.published_count(), judge.duplicates, set_aside];
    let [events, published, duplicates, set_aside] = counts.map(|count| count as u64);
    Ok(Report {
        seed,
        counts: [history.steps, events, published, duplicates, set_aside],
        injected: faults.injected,
        reached,
        simulated_time,
        violation: judge.violation,
        history: history.entries.unwrap_or_default(),
    })
}

async fn simulate(world: &Arc<World>) {
    let mut processes = Processes::start(world);
    let fault_period = world.lock().random.millis(2_000, 30_000);
    let faults_stop_at = Instant::now() + fault_period;
    while Instant::now() < faults_stop_at && !has_violation(world) {
        sleep(TICK_INTERVAL).await;
        tick(world, &processes);
    }
    stop_faults(world);
    // Once the writers have ended, no further event becomes pending.
    for writer in &mut processes.writers {
        let _ = timeout(STOP_DEADLINE, writer).await;
    }
    let needs_parking = {
        let broker = &world.lock().broker;
        !broker.always_refused.is_empty() || !broker.too_large.is_empty()
    };
    let limit = if needs_parking { QUIESCENCE_DEADLINE_WITH_PARKING } else { QUIESCENCE_DEADLINE };
    let deadline = Instant::now() + limit;
    while !is_finished(world, deadline, limit) {
        sleep(QUIESCENCE_CHECK_INTERVAL).await;
    }
    if !has_violation(world) {
        stop_processes(world, processes).await;
    }
}

/// Whether the wait for quiescence is over: nothing is pending, the deadline has passed, or an invariant is violated.
fn is_finished(world: &World, deadline: Instant, limit: Duration) -> bool {
    let mut state = world.lock();
    run_due_work(&mut state);
    match pending_work(&state) {
        None => check_all_settled(&mut state),
        Some(pending) if Instant::now() >= deadline => {
            state.judge.violate(format!("I8: {limit:?} after the faults stopped, {pending}"));
        }
        Some(_) => return state.judge.violation.is_some(),
    }
    true
}

/// Stops relays and consumers. Checks I8, that all of them stop, and I9, that no lane stays locked.
async fn stop_processes(world: &Arc<World>, processes: Processes) {
    world.stop.cancel();
    for worker in processes.workers {
        if !matches!(timeout(STOP_DEADLINE, worker).await, Ok(Ok(()))) {
            return world.lock().judge.violate("I8: a process did not stop");
        }
    }
    sleep(IDLE_LIMIT).await;
    let mut state = world.lock();
    if let Some(session) = state.outbox_now().sessions.values().next() {
        let message = format!("I9: {} still holds lanes {:?}", session.actor, session.lanes);
        state.judge.violate(message);
    }
}

fn has_violation(world: &World) -> bool {
    world.lock().judge.violation.is_some()
}

/// Says what is still pending; `None` means that the world is quiescent.
pub(crate) fn pending_work(state: &State) -> Option<String> {
    for (seq, row) in &state.outbox.rows {
        if !row.committed {
            return Some(format!("event {seq} is neither committed nor rolled back"));
        }
        if !row.published && !state.outbox.is_parked_or_behind(*seq, row) {
            return Some(format!("event {seq}, {}, is not published", row.id));
        }
    }
    if state.log.as_ref().is_some_and(|log| log.acknowledged < log.entries.len()) {
        return Some("the log is not acknowledged".into());
    }
    if !state.broker.late.is_empty() {
        return Some("messages have not arrived at the broker".into());
    }
    for queue in &state.broker.queues {
        let service = queue.service;
        let ready = queue.returned.len() + queue.ready.len();
        let unacknowledged: usize = queue.channels.values().map(|channel| channel.unacknowledged.len()).sum();
        if ready + unacknowledged > 0 {
            return Some(format!(
                "service {service} has {ready} ready and {unacknowledged} unacknowledged messages"
            ));
        }
    }
    None
}

/// Checks I3 in a quiescent world: every published event is applied or set aside at every service.
pub(crate) fn check_all_settled(state: &mut State) {
    for row in state.outbox.rows.values().filter(|row| row.published) {
        for service in 0..SERVICES {
            if !state.judge.is_settled(service, row.id) {
                state.judge.violate(format!(
                    "I3: {} was published, but service {service} neither applied it nor set it aside",
                    row.id
                ));
            }
        }
    }
}
