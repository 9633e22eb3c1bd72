//! Relays as they are often written, in the place of the product's. `load-tests baselines` measures them.

mod listen_alone;
mod poll_one_by_one;
mod trigger;

use broker::{ConnectionStatus, Endpoint, Publisher};
use database::PoolKind;
use orders::{SERVICE, Settings};
use outbox::{Relay, Wake};
use sabotage::row_locks::{OncePublished, RowLockStore};
use service::{Process, RelayTasks};
use uuid::Uuid;

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

/// The connections of a variant's relays: two relays, a listener and a spare one.
const CONNECTIONS: u32 = 4;

/// Starts the relay of a variant. `tasks` are those of the product, which it may use.
pub(crate) async fn start(
    variant: RelayVariant,
    process: &mut Process,
    settings: &Settings,
    tasks: RelayTasks,
) -> anyhow::Result<()> {
    let url = &settings.common.database_url;
    let deadline = settings.publisher.confirm_deadline;
    let endpoint = Endpoint::new(&settings.common.amqp_url, SERVICE.name)?;
    let publisher = Publisher::new(endpoint, ConnectionStatus::new("publisher"), deadline);
    let stop = process.stop();
    match variant {
        RelayVariant::PollOneByOne => {
            // Its marks wait for the disk: a relay like this one is written without a thought of `synchronous_commit`.
            let pool = database::pool(url, "relay", CONNECTIONS, PoolKind::Statements);
            process.spawn("relay", poll_one_by_one::run(pool, publisher, stop));
        }
        RelayVariant::RowLocks => tasks.start_with(process, |pool, publisher, options| {
            Relay::over(RowLockStore::new(pool, OncePublished::Mark), publisher, options)
        }),
        RelayVariant::DeleteOncePublished => tasks.start_with(process, |pool, publisher, options| {
            Relay::over(RowLockStore::new(pool, OncePublished::Delete), publisher, options)
        }),
        RelayVariant::TriggerNotify | RelayVariant::ListenAlone => {
            let pool = database::pool(url, "relay", CONNECTIONS, PoolKind::AsyncCommit);
            trigger::create(&pool).await?;
            let wake = Wake::new();
            if variant == RelayVariant::TriggerNotify {
                let relay = Relay::new(pool.clone(), publisher, outbox::RelayOptions::default());
                process.spawn("relay", relay.run(wake.clone(), stop.clone()));
                process.spawn("listener", outbox::listen(pool, wake, Uuid::now_v7(), stop));
            } else {
                let relay = Relay::new(pool.clone(), publisher, listen_alone::options());
                process.spawn("relay", relay.run(wake.clone(), stop.clone()));
                process.spawn("listener", listen_alone::listen(pool, wake, stop));
            }
        }
    }
    Ok(())
}
