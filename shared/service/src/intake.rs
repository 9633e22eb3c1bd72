//! The consumer of a process, its dead letters, and its memory.

use axum::Router;
use broker::{Collector, Consumer, ConsumerOptions, Endpoint, Link};
use events::transport::Handler;
use inbox::{
    DeadLetters,
    operator::{self, Rules},
};
use runtime::{
    Supervisor,
    database::{self, Purpose},
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::settings::{Consuming, Ground};

/// What is consumed, and under which name it is remembered.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    /// The queue.
    pub queue: &'static str,
    /// The name under which processed events are recorded.
    pub consumer: &'static str,
}

/// The intake of a process, not yet running.
pub struct Intake {
    subscription: Subscription,
    endpoint: Endpoint,
    link: Link,
    pool: PgPool,
    rules: Rules,
    options: Consuming,
}

impl Intake {
    /// Connects to nothing yet.
    pub fn new(subscription: Subscription, endpoint: Endpoint, ground: &Ground, options: &Consuming) -> Self {
        let connections = options.consumer_connections;
        let pool = database::pool(&ground.database_url, "consumer", connections, Purpose::Transactions);
        let rules = Rules { within: ground.replay_within, force: false };
        let options = options.clone();
        Self { subscription, endpoint, link: Link::new("consumer"), pool, rules, options }
    }

    /// Connections on which transactions may be begun: for the handler, and for who watches the database.
    pub fn pool(&self) -> PgPool {
        self.pool.clone()
    }

    /// Whether the consumer has its broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let link = self.link.clone();
        move || link.state()
    }

    /// What operators may do about dead letters; `handler` applies what they replay.
    pub fn admin(&self, handler: impl Handler) -> Router {
        operator::routes(self.pool.clone(), handler, self.rules)
    }

    /// Starts the consumer, what keeps its dead letters, and what forgets, in the end, what was applied.
    pub fn start(self, tasks: &mut Supervisor, handler: impl Handler, stop: &CancellationToken) {
        let Self {
            subscription: Subscription { queue, consumer: name }, endpoint, link, pool, options, ..
        } = self;
        let consuming = ConsumerOptions { prefetch: options.prefetch, ..ConsumerOptions::default() };
        let consumer = Consumer::new(endpoint.clone(), queue, consuming, link);
        tasks.spawn_infallible("consumer", consumer.run(handler, stop.clone()));
        // What it cannot apply lies in a table, where an operator can look at it and have it applied again.
        let letters = DeadLetters::new(pool.clone());
        let collector = Collector::new(endpoint, queue);
        tasks.spawn_infallible("collector", collector.run(letters.clone(), stop.clone()));
        tasks.spawn_infallible("dead letters", letters.observe(stop.clone()));
        let retention = inbox::Retention::new(pool, name, options.remember);
        tasks.spawn_infallible("inbox retention", retention.run(stop.clone()));
    }
}
