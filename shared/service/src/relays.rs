//! The relays of a process, what wakes and watches them, and what clears up behind them.

use axum::Router;
use broker::{Endpoint, Link, Publisher};
use outbox::{Relay, RelayOptions, Retention, Wake, backlog, operator};
use runtime::{
    Supervisor,
    database::{self, DatabaseUrl, Purpose},
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::settings::{Ground, Publishing};

/// The relays of a process, not yet running.
pub struct Relays {
    endpoint: Endpoint,
    links: Vec<Link>,
    pool: PgPool,
    database_url: DatabaseUrl,
    rules: operator::Rules,
    options: Publishing,
}

impl Relays {
    /// Connects to nothing yet.
    pub fn new(endpoint: Endpoint, ground: &Ground, options: &Publishing) -> Self {
        let first = Link::new("publisher");
        let others: Vec<_> = (1..options.relay_workers).map(|_| first.another()).collect();
        let links = std::iter::once(first).chain(others).collect();
        // One connection for each relay, and five for those who wake them, watch them and clear up behind them: nobody
        // else's are touched.
        let connections = u32::from(options.relay_workers) + 5;
        let pool = database::pool(&ground.database_url, "relay", connections, Purpose::Marks);
        let rules = operator::Rules { within: ground.replay_within, force: false };
        let database_url = ground.database_url.clone();
        Self { endpoint, links, pool, database_url, rules, options: options.clone() }
    }

    /// Whether all relays have their broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let links = self.links.clone();
        move || links.iter().try_for_each(Link::state)
    }

    /// What operators may do about the outbox, on connections of its own: a look at a long history keeps nobody waiting.
    pub fn admin(&self, wake: &Wake) -> Router {
        let pool = database::pool(&self.database_url, "outbox admin", 2, Purpose::Statements);
        operator::routes(pool, wake.clone(), self.rules)
    }

    /// Starts them, what wakes and watches them, and what clears up behind them.
    pub fn start(self, tasks: &mut Supervisor, wake: &Wake, stop: &CancellationToken) {
        let Self { endpoint, links, pool, options, .. } = self;
        for link in links {
            let publisher = Publisher::new(endpoint.clone(), link, options.confirm_deadline);
            let options = RelayOptions {
                batch: options.relay_batch,
                poll: options.relay_poll,
                full_look: options.relay_full_look,
                ..RelayOptions::default()
            };
            let relay = Relay::new(pool.clone(), publisher, options);
            tasks.spawn_infallible("relay", relay.run(wake.clone(), stop.clone()));
        }
        let instance = Uuid::now_v7();
        tasks
            .spawn_infallible("listener", outbox::listen(pool.clone(), wake.clone(), instance, stop.clone()));
        tasks.spawn_infallible(
            "notifier",
            outbox::notify_others(pool.clone(), wake.clone(), instance, stop.clone()),
        );
        tasks.spawn_infallible("backlog", backlog::observe(pool.clone(), stop.clone()));
        let retention = Retention::new(pool, options.keep_published);
        tasks.spawn_infallible("outbox retention", retention.run(stop.clone()));
    }
}
