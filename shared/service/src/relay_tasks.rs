use axum::Router;
use broker::{ConnectionStatus, Endpoint, Publisher};
use database::{Pool, PoolKind};
use messaging::replay::ReplayPolicy;
use outbox::{Relay, RelayOptions, Wake, store::Store};

use crate::{
    Process,
    settings::{CommonSettings, PublisherSettings},
};

/// A relay uses one connection, and another after a step that was given up.
const CONNECTIONS_OF_A_RELAY: u32 = 2;

/// The relays of a process, with the tasks that wake, watch and clean up.
pub struct RelayTasks {
    pub endpoint: Endpoint,
    statuses: Vec<ConnectionStatus>,
    pool: Pool,
    operations: Pool,
    wake: Wake,
    policy: ReplayPolicy,
    pub settings: PublisherSettings,
}

impl RelayTasks {
    pub fn new(process: &Process, settings: PublisherSettings) -> Self {
        let CommonSettings { database_url, replay_within, .. } = process.settings();
        let first = ConnectionStatus::new("publisher");
        let others: Vec<_> = (1..settings.relay_workers).map(|_| first.register_user()).collect();
        let connections = u32::from(settings.relay_workers) * CONNECTIONS_OF_A_RELAY;
        Self {
            endpoint: process.endpoint(),
            statuses: std::iter::once(first).chain(others).collect(),
            pool: Pool::new(database_url, "relay", connections, PoolKind::AsyncCommit),
            operations: process.operations(),
            wake: Wake::new(),
            policy: ReplayPolicy { max_age: *replay_within, force: false },
            settings,
        }
    }

    /// Wakes these relays after a commit.
    pub fn wake(&self) -> Wake {
        self.wake.clone()
    }

    /// A probe for `Health`: whether all relays are connected to the broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let statuses = self.statuses.clone();
        move || statuses.iter().try_for_each(ConnectionStatus::state)
    }

    /// The admin routes of the outbox.
    pub fn admin_routes(&self) -> Router {
        crate::admin_routes::outbox_routes(self.operations.clone(), self.wake.clone(), self.policy)
    }

    /// Starts relays that `relay` makes: in the product [`Relay::new`].
    pub fn start<P: messaging::Publisher + 'static, S: Store + 'static>(
        self,
        process: &mut Process,
        relay: impl Fn(Pool, Publisher, RelayOptions) -> Relay<P, S>,
    ) {
        let Self { endpoint, statuses, pool, operations, wake, settings, .. } = self;
        let stop = process.stop();
        for status in statuses {
            let publisher = Publisher::new(endpoint.clone(), status, settings.confirm_deadline);
            let options = RelayOptions {
                batch: settings.relay_batch,
                poll: settings.relay_poll,
                full_scan: settings.relay_full_scan,
                ..RelayOptions::default()
            };
            process.spawn("relay", relay(pool.clone(), publisher, options).run(wake.clone(), stop.clone()));
        }
        process.spawn("listener", outbox::listen(pool, wake, stop.clone()));
        process.spawn("backlog", outbox::observe_backlog(operations.clone(), stop.clone()));
        process.spawn("outbox retention", outbox::retention(operations, settings.keep_published).run(stop));
    }
}
