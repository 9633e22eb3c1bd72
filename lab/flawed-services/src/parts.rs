//! How the programs put their parts together.

use std::{env, process::ExitCode, time::Duration};

use database::Pool;
use flaws::{Flaw, LeftOut};
use messaging::{Relay, SharedHandler, Wake};
use outbox::{LogStore, PostgresStore};
use service::{
    ConsumerTasks, Parts, Process, RelayTasks, environment::exit_invalid_config, settings::RelayKind,
};
use tokio::time::sleep;

use crate::{
    crash,
    handler::FlawedHandler,
    publisher::FlawedPublisher,
    relays::{listen_alone, poll_one_by_one, trigger},
    row_locks::{OncePublished, RowLockStore},
    store::FlawedStore,
    writes,
};

/// How often `short-memory` erases the records of processed events.
const ERASE_INTERVAL: Duration = Duration::from_secs(1);

/// The product's parts with the one replaced that a flaw is about. Without a flaw all are the product's.
#[derive(Debug, Clone, Copy)]
pub struct FlawedParts(pub Option<Flaw>);

impl FlawedParts {
    /// Reads `SABOTAGE` and arms the crash point of `CRASH_POINT`. An unknown name ends the process with exit code 78.
    pub fn sabotaged() -> Self {
        crash::arm_from_env();
        Self(env::var("SABOTAGE").ok().map(|name| named("SABOTAGE", &name, LeftOut::Part)))
    }

    /// The same with `VARIANT`, which must be there.
    pub fn variant() -> Self {
        crash::arm_from_env();
        Self(Some(named("VARIANT", &env::var("VARIANT").unwrap_or_default(), LeftOut::Variant)))
    }
}

pub(crate) fn named(variable: &str, name: &str, left_out: LeftOut) -> Flaw {
    Flaw::named(name).filter(|flaw| flaw.row().left_out == left_out).unwrap_or_else(|| {
        let names: Vec<_> = Flaw::names(|other| other == left_out).collect();
        exit_invalid_config(&format!("{variable}: one of {}", names.join(", ")))
    })
}

/// Runs the order service with these parts until it is stopped.
pub async fn run_orders(parts: FlawedParts) -> anyhow::Result<ExitCode> {
    orders::run(parts, |routes, settings, state| match writes::of(parts.0) {
        Some(write) => writes::routes(write, settings, state, routes),
        None => Ok(routes),
    })
    .await
}

impl Parts for FlawedParts {
    /// Some relays hear of events in another way, or by themselves.
    fn wake(&self, relays: Wake) -> Wake {
        match self.0 {
            Some(Flaw::PollOneByOne | Flaw::TriggerNotify | Flaw::ListenAlone) => Wake::new(),
            _ => relays,
        }
    }

    async fn start_relays(&self, relays: RelayTasks, process: &mut Process) -> anyhow::Result<()> {
        let flaw = self.0;
        match flaw {
            Some(Flaw::PollOneByOne) => poll_one_by_one::start(&relays, process),
            Some(Flaw::TriggerNotify) => {
                trigger::create(&process.operations()).await?;
                relays.start(process, outbox::relay);
            }
            Some(Flaw::ListenAlone) => {
                let (pool, notified) = (process.operations(), Wake::new());
                trigger::create(&pool).await?;
                process.spawn("notifications", listen_alone::listen(pool, notified.clone(), process.stop()));
                relays.start(process, |pool, publisher, options| {
                    let store = PostgresStore::new(pool, listen_alone::NO_POLL);
                    Relay::new(FlawedStore::listening_alone(store, notified.clone()), publisher, options)
                });
            }
            Some(Flaw::SkipLockedOnRows | Flaw::RowLocks | Flaw::DeleteOncePublished) => {
                let delete = flaw == Some(Flaw::DeleteOncePublished);
                let once_published = if delete { OncePublished::Delete } else { OncePublished::Mark };
                relays.start(process, |pool, publisher, options| {
                    Relay::new(RowLockStore::new(pool, once_published), publisher, options)
                });
            }
            _ if relays.settings.relay == RelayKind::Log => {
                relays.start(process, |pool, publisher, options| {
                    let store = FlawedStore::new(LogStore::new(pool, options.full_scan), flaw);
                    Relay::new(store, FlawedPublisher::new(publisher, flaw), options)
                });
            }
            _ => relays.start(process, |pool, publisher, options| {
                let store = FlawedStore::new(PostgresStore::new(pool, options.full_scan), flaw);
                Relay::new(store, FlawedPublisher::new(publisher, flaw), options)
            }),
        }
        Ok(())
    }

    async fn start_consumer(&self, consumer: ConsumerTasks, handler: SharedHandler, process: &mut Process) {
        let (pool, name) = (consumer.pool(), consumer.inbox.consumer);
        if self.0 == Some(Flaw::ShortMemory) {
            forget_soon(pool.clone(), name, process).await;
        }
        consumer.start(process, &SharedHandler::new(FlawedHandler::new(handler, pool, name, self.0)));
    }
}

/// Keeps the ids of the processed events that are erased.
const KEEP_FORGOTTEN: &str = "
    create table if not exists forgotten_events (event_id uuid primary key);
    create or replace function forget() returns trigger language plpgsql as $$
    begin
        insert into forgotten_events values (old.event_id) on conflict do nothing;
        return null;
    end $$;
    create or replace trigger forget after delete on processed_events
    for each row execute function forget()";

/// Erases the records of processed events, now and each second. A trigger keeps the ids for [`FlawedHandler`].
async fn forget_soon(pool: Pool, consumer: &'static str, process: &mut Process) {
    // Instances that add a trigger at once disturb each other, and one of them adds it.
    if let Err(error) = sqlx::raw_sql(KEEP_FORGOTTEN).execute(&pool).await {
        tracing::warn!(%error, "failed to add a trigger");
    }
    let mut retention = inbox::retention(pool, consumer, Duration::ZERO);
    let stop = process.stop();
    let mut erase = async move || {
        if let Err(error) = retention.round().await {
            tracing::warn!(%error, "failed to erase processed events");
        }
    };
    // Before the first message: what was being processed when the process died comes at once.
    erase().await;
    let erasing = async move {
        let rounds = async {
            loop {
                erase().await;
                sleep(ERASE_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
    };
    process.spawn("short memory", erasing);
}
