use axum::Router;
use broker::{ConnectionStatus, Endpoint, Publisher};
use database::{DatabaseUrl, PoolKind};
use operator::ReplayPolicy;
use outbox::{Relay, RelayOptions, Wake, store::Store};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    Process,
    settings::{CommonSettings, PublisherSettings},
};

/// The connections of the relays' pool that are not used by relays: for the listener, the notifier, the backlog count,
/// retention, and one spare.
const OTHER_CONNECTIONS: u32 = 5;

/// The relays of a process, with the tasks that wake, watch and clean up.
pub struct RelayTasks {
    endpoint: Endpoint,
    statuses: Vec<ConnectionStatus>,
    pool: PgPool,
    wake: Wake,
    database_url: DatabaseUrl,
    policy: ReplayPolicy,
    settings: PublisherSettings,
}

impl RelayTasks {
    pub fn new(process: &Process, common: &CommonSettings, settings: &PublisherSettings) -> Self {
        let first = ConnectionStatus::new("publisher");
        let others: Vec<_> = (1..settings.relay_workers).map(|_| first.register_user()).collect();
        let connections = u32::from(settings.relay_workers) + OTHER_CONNECTIONS;
        Self {
            endpoint: process.endpoint(),
            statuses: std::iter::once(first).chain(others).collect(),
            pool: database::pool(&common.database_url, "relay", connections, PoolKind::AsyncCommit),
            wake: Wake::new(),
            database_url: common.database_url.clone(),
            policy: ReplayPolicy { max_age: common.replay_within, force: false },
            settings: settings.clone(),
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

    /// The admin routes of the outbox, on connections of their own: reading a long history delays no relay.
    pub fn admin_routes(&self) -> Router {
        let pool = database::pool(&self.database_url, "outbox admin", 2, PoolKind::Statements);
        operator::outbox_routes(pool, self.wake.clone(), self.policy)
    }

    pub fn start(self, process: &mut Process) {
        self.start_with(process, Relay::new);
    }

    /// Starts relays that `relay` makes. The lab uses it to run a relay with one part replaced.
    pub fn start_with<P: messaging::Publisher + 'static, S: Store + 'static>(
        self,
        process: &mut Process,
        relay: impl Fn(PgPool, Publisher, RelayOptions) -> Relay<P, S>,
    ) {
        let Self { endpoint, statuses, pool, wake, settings, .. } = self;
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
        let instance = Uuid::now_v7();
        process.spawn("listener", outbox::listen(pool.clone(), wake.clone(), instance, stop.clone()));
        process.spawn("notifier", outbox::notify_other_instances(pool.clone(), wake, instance, stop.clone()));
        process.spawn("backlog", outbox::observe_backlog(pool.clone(), stop.clone()));
        process.spawn("outbox retention", outbox::retention(pool, settings.keep_published).run(stop));
    }
}
