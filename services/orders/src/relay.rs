//! The relays of this process, what wakes and watches them, and what clears up behind them.

use broker::{Endpoint, Link, Publisher};
use outbox::{Relay, RelayOptions, Retention, Wake, backlog};
use runtime::{
    Supervisor,
    database::{self, Purpose},
    settings,
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Settings, idempotency_key};

/// The relays of this process, not yet running.
pub struct Relays {
    endpoint: Endpoint,
    links: Vec<Link>,
    pool: PgPool,
    settings: Settings,
}

impl Relays {
    /// Connects to nothing yet. A URL that is none ends the process.
    pub fn new(settings: &Settings) -> Self {
        let endpoint = Endpoint::new(&settings.amqp_url, "orders")
            .unwrap_or_else(|error| settings::refuse(&format!("ORDERS_AMQP_URL: {error}")));
        let first = Link::new("publisher");
        let others: Vec<_> = (1..settings.relay_workers).map(|_| first.another()).collect();
        let links = std::iter::once(first).chain(others).collect();
        // One connection for each relay, and five for those who wake them, watch them and clear up behind them: the API's
        // are not touched.
        let connections = u32::from(settings.relay_workers) + 5;
        let pool = database::pool(&settings.database_url, "orders relay", connections, Purpose::Marks);
        Self { endpoint, links, pool, settings: settings.clone() }
    }

    /// Whether all relays have their broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let links = self.links.clone();
        move || links.iter().try_for_each(Link::state)
    }

    /// Ends the process if the broker refuses us at the start. One that is merely away is waited for.
    pub async fn check(&self) {
        if let Err(error) = self.endpoint.check().await {
            settings::refuse(&format!("ORDERS_AMQP_URL: {error}"));
        }
    }

    /// Starts them, what wakes and watches them, and what clears up behind them.
    pub fn start(self, tasks: &mut Supervisor, wake: &Wake, stop: &CancellationToken) {
        let Self { endpoint, links, pool, settings } = self;
        for link in links {
            let publisher = Publisher::new(endpoint.clone(), link, settings.confirm_deadline);
            let options = RelayOptions {
                batch: settings.relay_batch,
                poll: settings.relay_poll,
                full_look: settings.relay_full_look,
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
        let keys = idempotency_key::forget(pool.clone(), settings.remember_keys, stop.clone());
        tasks.spawn_infallible("key retention", keys);
        tasks.spawn_infallible("retention", Retention::new(pool, settings.keep_published).run(stop.clone()));
    }
}
