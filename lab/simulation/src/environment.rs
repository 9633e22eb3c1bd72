//! The processes, which crash and are started again, and the faults of their environment: outages of the broker and the
//! databases, and lost bindings.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use flaws::Flaw;
use messaging::{Relay, RelayOptions, Step, Store, Wake};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use crate::{
    broker_actions::{close_all_connections, close_channel, run_due_work},
    consumer::{ConsumerLimits, consume},
    fault::Fault,
    history::{Actor, SERVICES},
    log_store::MemoryLogStore,
    partitions::agree_on_partitions,
    process::{Process, World},
    publisher::MemoryPublisher,
    state::State,
    store::MemoryStore,
    writer::write,
};

/// How many events a restarted writer writes.
const EVENTS_AFTER_RESTART: usize = 2;

/// The tasks of all processes, and the signals that crash them.
pub(crate) struct Processes {
    pub(crate) writers: Vec<JoinHandle<()>>,
    /// Relays and consumers.
    pub(crate) workers: Vec<JoinHandle<()>>,
    crashes: CrashSignals,
}

/// The crash signal of each actor's current process. It takes effect at every await, also between fault points.
type CrashSignals = Arc<Mutex<BTreeMap<Actor, Arc<Notify>>>>;

impl Processes {
    /// Draws how many processes there are, and starts them.
    pub(crate) fn start(world: &Arc<World>) -> Self {
        let crashes = CrashSignals::default();
        let (writers, events, relays, instances) = {
            let mut state = world.lock();
            let random = &mut state.random;
            let instances = [random.between(1, 2), random.between(1, 2)];
            (random.between(1, 4), random.between(8, 40), random.between(1, 4), instances)
        };
        let mut processes = Self { writers: vec![], workers: vec![], crashes };
        for writer in 0..writers {
            // The requests of a crashed writer are not repeated: what was not committed is not pending.
            let mut first_count = Some(events.div_ceil(writers));
            let task = processes.supervise(world, Actor::Writer(writer), move |process| {
                write(process, first_count.take().unwrap_or(EVENTS_AFTER_RESTART))
            });
            processes.writers.push(task);
        }
        for relay in 0..relays {
            let options = relay_options(world);
            let task = processes.supervise(world, Actor::Relay(relay), move |process| {
                run_relay(process, relay, options.clone())
            });
            processes.workers.push(task);
        }
        for (service, instances) in instances.into_iter().enumerate().take(SERVICES) {
            let limits = {
                let random = &mut world.lock().random;
                ConsumerLimits { prefetch: random.between(1, 20), group: random.between(1, 10) }
            };
            for instance in 0..instances {
                let actor = Actor::Consumer(service, instance);
                let task = processes
                    .supervise(world, actor, move |process| consume(process, service, instance, limits));
                processes.workers.push(task);
            }
        }
        processes
    }

    /// Runs an actor's processes one after the other: restarts after each crash, until one ends by itself.
    fn supervise<F>(
        &self,
        world: &Arc<World>,
        actor: Actor,
        mut start: impl FnMut(Process) -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send,
    {
        let (world, crashes) = (Arc::clone(world), Arc::clone(&self.crashes));
        tokio::spawn(async move {
            loop {
                let process = Process::new(&world, actor);
                let crash = Arc::clone(&process.crash);
                crashes.lock().unwrap_or_else(PoisonError::into_inner).insert(actor, Arc::clone(&crash));
                let running = start(process);
                tokio::select! {
                    biased;
                    () = crash.notified() => {}
                    () = running => return,
                }
                let restart_delay = {
                    let mut state = world.lock();
                    state.note(actor, "crashed", String::new);
                    state.claimed.remove(&actor);
                    state.random.millis(10, 3_000)
                };
                sleep(restart_delay).await;
            }
        })
    }

    /// Crashes all relays and consumers.
    fn crash_workers(&self, state: &mut State) {
        let crashes = self.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        for (actor, crash) in crashes.iter().filter(|(actor, _)| !matches!(actor, Actor::Writer(_))) {
            state.allow_duplicates_of_claimed(*actor);
            crash.notify_one();
        }
    }

    /// Draws a process, and whether it crashes now, wherever it waits.
    pub(crate) fn crash_one(&self, world: &Arc<World>) {
        let crashes = self.crashes.lock().unwrap_or_else(PoisonError::into_inner);
        let actors: Vec<_> = crashes.keys().copied().collect();
        let mut state = world.lock();
        let actor = state.random.pick(&actors);
        let fault = match actor {
            Actor::Writer(_) => Fault::WriterCrash,
            Actor::Relay(_) => Fault::RelayCrash,
            Actor::Consumer(..) | Actor::Environment => Fault::ConsumerCrash,
        };
        if state.injects(fault) {
            state.allow_duplicates_of_claimed(actor);
            if let Some(crash) = crashes.get(&actor) {
                crash.notify_one();
            }
        }
    }
}

fn relay_options(world: &World) -> RelayOptions {
    let random = &mut world.lock().random;
    let batch = random.pick(&[1, 4, 20, 500]);
    let poll =
        if world.has(Flaw::WokenOnly) { Duration::from_secs(100_000) } else { random.millis(500, 3_000) };
    // The store in memory keeps no scan watermark, so each of its scans is a full one.
    RelayOptions { batch, poll, lanes: random.pick(&[1, 4, 8, 16]), full_scan: poll }
}

/// Runs one process of a relay.
async fn run_relay(process: Process, number: usize, options: RelayOptions) {
    let reads_log = process.world.lock().log.is_some();
    if reads_log {
        let store = MemoryLogStore::new(process.clone(), options.full_scan);
        run_over(store, process, number, options).await;
    } else {
        run_over(MemoryStore::new(process.clone()), process, number, options).await;
    }
}

/// Runs the real relay: usually its own loop, sometimes step by step.
async fn run_over(store: impl Store, process: Process, number: usize, options: RelayOptions) {
    let wake = Wake::new();
    let partitions = agree_on_partitions(&process).await;
    let by_steps = {
        let mut state = process.world.lock();
        state.wakes.insert(number, wake.clone());
        !process.world.has(Flaw::WokenOnly) && state.random.one_in(4)
    };
    let stop = process.world.stop.clone();
    let poll = options.poll;
    let mut relay = Relay::new(store, MemoryPublisher::new(process, partitions), options);
    if !by_steps {
        return relay.run(wake, stop).await;
    }
    while !stop.is_cancelled() {
        let wait = match relay.step().await {
            Ok(Step::Published(_) | Step::Refused) => Duration::ZERO,
            Ok(Step::Busy) => Duration::from_millis(2),
            Ok(Step::PublishedAll(_) | Step::Idle | Step::NoneConfirmed | Step::BrokerUnavailable)
            | Err(_) => poll,
        };
        stop.run_until_cancelled(sleep(wait)).await;
    }
}

/// How often the environment's faults are drawn.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Draws which faults of the environment begin now.
pub(crate) fn tick(world: &Arc<World>, processes: &Processes) {
    processes.crash_one(world);
    let mut state = world.lock();
    let state = &mut *state;
    if state.injects(Fault::BrokerUnavailable) {
        state.broker.unavailable_until = state.now + state.random.millis(100, 20_000);
        let actors: Vec<_> = state.claimed.keys().copied().collect();
        for actor in actors {
            state.allow_duplicates_of_claimed(actor);
        }
        close_all_connections(state);
    }
    if state.injects(Fault::Unroutable) {
        state.broker.unbound = true;
        state.broker.unbound_half = state.random.one_in(2);
        // The bindings are missing until a client connects, but at least for this long.
        state.broker.unbound_until = state.now + state.random.millis(0, 8_000);
    }
    if state.injects(Fault::DatabaseUnavailable) {
        state.databases_unavailable_until = state.now + state.random.millis(100, 20_000);
    }
    if state.standby.is_some() && state.injects(Fault::StandbyWaitCancelled) {
        state.cancel_waits();
    }
    if state.standby.is_some() && state.injects(Fault::FailOver) {
        state.fail_over();
    }
    if state.injects(Fault::PartitionsChanged) {
        state.broker.wanted_partitions = state.random.pick(&[1, 2, 4]);
        processes.crash_workers(state);
    }
    if state.injects(Fault::ConsumerDisconnected) {
        let queues = state.broker.queues.iter().enumerate();
        let channels: Vec<_> =
            queues.flat_map(|(queue, it)| it.channels.keys().map(move |id| (queue, *id))).collect();
        if !channels.is_empty() {
            let (queue, id) = state.random.pick(&channels);
            close_channel(state, queue, id);
        }
    }
    run_due_work(state);
}

/// Ends the fault period: no further fault is injected, and outages end. The consequences of earlier faults stay.
pub(crate) fn stop_faults(world: &Arc<World>) {
    let mut state = world.lock();
    let state = &mut *state;
    state.faults.enabled = false;
    state.databases_unavailable_until = Duration::ZERO;
    state.broker.unavailable_until = Duration::ZERO;
    state.broker.unbound_until = Duration::ZERO;
    // The end of the outage includes the bindings: a publisher that stays connected would not declare them.
    state.broker.unbound = false;
    state.note(Actor::Environment, "faults stopped", String::new);
}
