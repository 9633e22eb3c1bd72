//! Relays as they are often written, in the place of the product's. `load-tests baselines` measures them.

mod listen_alone;
mod poll_one_by_one;
mod trigger;

use database::{Pool, PoolKind};
use outbox::{Relay, RelayOptions, Wake};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus};
use sabotage::row_locks::{OncePublished, RowLockStore};
use service::{Process, RelayTasks};

/// A way to get events out of the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayVariant {
    /// Every second, publish what is there: one event, its confirm, its mark, and the next.
    PollOneByOne,
    /// The product's relay, but it locks rows where the product's locks lanes.
    RowLocks,
    /// The same, and it deletes a row when its event is published.
    DeleteOncePublished,
    /// The product's relay, woken by a trigger that sends NOTIFY for each row in the order's own transaction.
    TriggerNotify,
    /// The same, but nothing else wakes it: it does not poll, and does not look when it listens again.
    ListenAlone,
}

/// The connections of a variant's relays that are not used by relays: for a listener, the backlog count, and a spare one.
const OTHER_CONNECTIONS: u32 = 3;

/// Starts the relay of a variant. `tasks` are those of the product, which it may use.
pub(crate) async fn start(
    variant: RelayVariant,
    tasks: RelayTasks,
    process: &mut Process,
) -> anyhow::Result<()> {
    let (workers, confirm_deadline) = (tasks.settings.relay_workers, tasks.settings.confirm_deadline);
    let database_url = process.settings().database_url.clone();
    let pool = |kind| Pool::new(&database_url, "relay", u32::from(workers) + OTHER_CONNECTIONS, kind);
    let endpoint = tasks.endpoint.clone();
    let publisher = || {
        let status = ConnectionStatus::new("publisher");
        ConfirmingPublisher::new(endpoint.clone(), status, confirm_deadline)
    };
    let stop = process.stop();
    match variant {
        RelayVariant::PollOneByOne => {
            // Its marks wait for the disk: a relay like this one is written without a thought of `synchronous_commit`.
            let pool = pool(PoolKind::Statements);
            process.spawn("relay", poll_one_by_one::run(pool.clone(), publisher(), stop.clone()));
            process.spawn("backlog", outbox::observe_backlog(pool, stop));
        }
        RelayVariant::RowLocks => tasks.start(process, |pool, publisher, options| {
            Relay::over(RowLockStore::new(pool, OncePublished::Mark), publisher, options)
        }),
        RelayVariant::DeleteOncePublished => tasks.start(process, |pool, publisher, options| {
            Relay::over(RowLockStore::new(pool, OncePublished::Delete), publisher, options)
        }),
        RelayVariant::TriggerNotify | RelayVariant::ListenAlone => {
            let pool = pool(PoolKind::AsyncCommit);
            trigger::create(&pool).await?;
            let (wake, polls) = (Wake::new(), variant == RelayVariant::TriggerNotify);
            let options = if polls { RelayOptions::default() } else { listen_alone::options() };
            for _ in 0..workers {
                let relay = Relay::new(pool.clone(), publisher(), options.clone());
                process.spawn("relay", relay.run(wake.clone(), stop.clone()));
            }
            process.spawn("backlog", outbox::observe_backlog(pool.clone(), stop.clone()));
            if polls {
                process.spawn("listener", outbox::listen(pool, wake, stop));
            } else {
                process.spawn("listener", listen_alone::listen(pool, wake, stop));
            }
        }
    }
    Ok(())
}
