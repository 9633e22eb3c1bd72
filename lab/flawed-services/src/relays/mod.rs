//! Relays as they are often written, in the place of the product's.

mod listen_alone;
mod poll_one_by_one;
mod trigger;

use database::{Pool, PoolKind};
use outbox::{Relay, RelayOptions, Wake};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus};
use service::{Process, RelayTasks};

/// The connections that are not used by relays: for a listener, the backlog count, and a spare one.
const OTHER_CONNECTIONS: u32 = 3;

fn pool(tasks: &RelayTasks, process: &Process, kind: PoolKind) -> Pool {
    let connections = u32::from(tasks.settings.relay_workers) + OTHER_CONNECTIONS;
    Pool::new(&process.settings().database_url, "relay", connections, kind)
}

fn publisher(tasks: &RelayTasks) -> ConfirmingPublisher {
    let status = ConnectionStatus::new("publisher");
    ConfirmingPublisher::new(tasks.endpoint.clone(), status, tasks.settings.confirm_deadline)
}

/// Every second, publish what is there: one event, its confirm, its mark, and the next.
pub(crate) fn start_polling_one_by_one(tasks: &RelayTasks, process: &mut Process) {
    // Its marks wait for the disk: a relay like this one is written without a thought of `synchronous_commit`.
    let (pool, stop) = (pool(tasks, process, PoolKind::Statements), process.stop());
    process.spawn("relay", poll_one_by_one::run(pool.clone(), publisher(tasks), stop.clone()));
    process.spawn("backlog", outbox::observe_backlog(pool, stop));
}

/// The product's relay, woken by a trigger that sends NOTIFY for each row in the order's own transaction. With `alone` nothing
/// else wakes it: it does not poll, and does not look when it listens again.
pub(crate) async fn start_triggered(
    tasks: &RelayTasks,
    process: &mut Process,
    alone: bool,
) -> anyhow::Result<()> {
    let (pool, wake, stop) = (pool(tasks, process, PoolKind::AsyncCommit), Wake::new(), process.stop());
    trigger::create(&pool).await?;
    let options = if alone { listen_alone::options() } else { RelayOptions::default() };
    for _ in 0..tasks.settings.relay_workers {
        let relay = Relay::new(pool.clone(), publisher(tasks), options.clone());
        process.spawn("relay", relay.run(wake.clone(), stop.clone()));
    }
    process.spawn("backlog", outbox::observe_backlog(pool.clone(), stop.clone()));
    if alone {
        process.spawn("listener", listen_alone::listen(pool, wake, stop));
    } else {
        process.spawn("listener", outbox::listen(pool, wake, stop));
    }
    Ok(())
}
