//! Life, death and restart of everybody who works in the world.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outbox::{Relay, RelayOptions, Step, Wake};
use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use crate::{
    consumer::{Appetite, consume},
    fault::Fault,
    history::Who,
    mutant::Mutant,
    publisher::MemoryPublisher,
    store::MemoryStore,
    world::{Owner, SERVICES, World},
    writer::write,
};

/// Everybody's tasks, and how each can be killed.
pub(crate) struct Lives {
    pub(crate) writers: Vec<JoinHandle<()>>,
    pub(crate) workers: Vec<JoinHandle<()>>,
    deaths: Deaths,
}

/// The life that each is leading now. Death reaches it wherever it waits, also where there is no gate.
type Deaths = Arc<Mutex<BTreeMap<Who, Arc<Notify>>>>;

impl Lives {
    pub(crate) fn begin(world: &Arc<World>) -> Self {
        let deaths = Deaths::default();
        let (writers, events, relays, instances) = {
            let mut state = world.lock();
            let dice = &mut state.dice;
            let instances = [dice.between(1, 2), dice.between(1, 2)];
            (dice.between(1, 4), dice.between(8, 40), dice.between(1, 4), instances)
        };
        let mut lives = Self { writers: vec![], workers: vec![], deaths };
        for writer in 0..writers {
            let who = Who::Writer(writer);
            let mut left = Some(events.div_ceil(writers));
            // A writer that died does not come back with the same requests: what was not committed is not owed.
            let task = lives.lead(world, who, move |owner| {
                let events = left.take().unwrap_or(2);
                write(owner, events)
            });
            lives.writers.push(task);
        }
        for relay in 0..relays {
            let options = relay_options(world);
            let task = lives.lead(world, Who::Relay(relay), move |owner| work(owner, relay, options.clone()));
            lives.workers.push(task);
        }
        for (service, instances) in instances.into_iter().enumerate().take(SERVICES) {
            let appetite = {
                let dice = &mut world.lock().dice;
                Appetite { prefetch: dice.between(1, 20), group: dice.between(1, 10) }
            };
            for instance in 0..instances {
                let who = Who::Consumer(service, instance);
                let task = lives.lead(world, who, move |owner| consume(owner, service, instance, appetite));
                lives.workers.push(task);
            }
        }
        lives
    }

    /// Leads one life after the other, until one ends by itself.
    fn lead<F>(
        &self,
        world: &Arc<World>,
        who: Who,
        mut live: impl FnMut(Owner) -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send,
    {
        let (world, deaths) = (Arc::clone(world), Arc::clone(&self.deaths));
        tokio::spawn(async move {
            loop {
                let owner = Owner::new(&world, who);
                let death = Arc::clone(&owner.death);
                deaths.lock().unwrap_or_else(PoisonError::into_inner).insert(who, Arc::clone(&death));
                let life = live(owner);
                tokio::select! {
                    biased;
                    () = death.notified() => {}
                    () = life => return,
                }
                let pause = {
                    let mut state = world.lock();
                    state.note(who, "died", 0, String::new);
                    state.in_hand.remove(&who);
                    state.dice.millis(10, 3_000)
                };
                sleep(pause).await;
            }
        })
    }

    /// Kills somebody at random, wherever they are.
    pub(crate) fn kill_one(&self, world: &Arc<World>) {
        let deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        let everybody: Vec<_> = deaths.keys().copied().collect();
        let mut state = world.lock();
        let who = state.dice.pick(&everybody);
        let fault = match who {
            Who::Writer(_) => Fault::WriterCrash,
            Who::Relay(_) => Fault::RelayCrash,
            Who::Consumer(..) | Who::World => Fault::ConsumerCrash,
        };
        if state.strikes(fault) {
            state.risk(who);
            if let Some(death) = deaths.get(&who) {
                death.notify_one();
            }
        }
    }
}

fn relay_options(world: &World) -> RelayOptions {
    let dice = &mut world.lock().dice;
    let batch = dice.pick(&[1, 4, 20, 500]);
    let poll =
        if world.is(Mutant::WokenOnly) { Duration::from_secs(100_000) } else { dice.millis(500, 3_000) };
    // The store here keeps no floor, so each of its looks is a full one.
    RelayOptions { batch, poll, lanes: dice.pick(&[1, 4, 8, 16]), full_look: poll }
}

/// One life of the real relay: mostly its own loop, sometimes step by step.
async fn work(owner: Owner, number: usize, options: RelayOptions) {
    let wake = Wake::new();
    let by_steps = {
        let mut state = owner.world.lock();
        state.wakes.insert(number, wake.clone());
        owner.world.mutant != Some(Mutant::WokenOnly) && state.dice.one_in(4)
    };
    let stop = owner.world.stop.clone();
    let poll = options.poll;
    let store = MemoryStore::new(owner.clone());
    let mut relay = Relay::over(store, MemoryPublisher::new(owner), options);
    if !by_steps {
        return relay.run(wake, stop).await;
    }
    while !stop.is_cancelled() {
        let wait = match relay.step().await {
            Ok(Step::Published(_)) => Duration::ZERO,
            Ok(Step::Busy) => Duration::from_millis(2),
            Ok(Step::Idle | Step::Stuck | Step::BrokerAway) | Err(_) => poll,
        };
        stop.run_until_cancelled(sleep(wait)).await;
    }
}
