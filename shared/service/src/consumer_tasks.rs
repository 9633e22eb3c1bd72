use axum::Router;
use broker::{ConnectionStatus, Consumer, ConsumerOptions, DeadLetterCollector, Endpoint};
use database::{Pool, PoolKind};
use inbox::{DeadLetterTable, Inbox};
use messaging::{DeadLetterStore, SharedHandler, replay::ReplayPolicy};

use crate::{
    Process,
    settings::{CommonSettings, ConsumerSettings},
};

/// The consumer of a process, with its dead letters and the retention of its records.
pub struct ConsumerTasks {
    inbox: Inbox,
    endpoint: Endpoint,
    status: ConnectionStatus,
    collector_status: ConnectionStatus,
    pool: Pool,
    operations: Pool,
    policy: ReplayPolicy,
    settings: ConsumerSettings,
}

impl ConsumerTasks {
    pub fn new(process: &Process, inbox: Inbox, settings: ConsumerSettings) -> Self {
        let CommonSettings { database_url, replay_within, .. } = process.settings();
        let connections = settings.consumer_connections;
        Self {
            inbox,
            endpoint: process.endpoint(),
            status: ConnectionStatus::new("consumer"),
            collector_status: ConnectionStatus::new("collector"),
            pool: Pool::new(database_url, "consumer", connections, PoolKind::Transactions),
            operations: process.operations(),
            policy: ReplayPolicy { max_age: *replay_within, force: false },
            settings,
        }
    }

    /// The name under which processed events are recorded.
    pub fn name(&self) -> &'static str {
        self.inbox.consumer
    }

    /// The connections of the handler.
    pub fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// A probe for `Health`: whether the consumer is connected to the broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let status = self.status.clone();
        move || status.state()
    }

    /// A probe for `Health`: whether dead letters are collected, and all of them can be saved.
    pub fn collector_probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let status = self.collector_status.clone();
        move || status.state()
    }

    /// Whether the queue was found empty within the last ten seconds.
    pub fn caught_up(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let status = self.status.clone();
        move || status.caught_up()
    }

    /// The admin routes of the dead letters. `handler` applies those that are replayed.
    pub fn admin_routes(&self, handler: SharedHandler) -> Router {
        crate::admin_routes::dead_letter_routes(self.pool.clone(), self.inbox, handler, self.policy)
    }

    /// Starts the consumer. `around` makes its dead-letter store of the table: in the product it is the table.
    pub fn start<L: DeadLetterStore>(
        self,
        process: &mut Process,
        handler: SharedHandler,
        around: impl FnOnce(DeadLetterTable) -> L,
    ) {
        let Self { inbox, endpoint, pool, operations, .. } = self;
        let Inbox { consumer: name, queue, .. } = inbox;
        let stop = process.stop();
        let options = ConsumerOptions { prefetch: self.settings.prefetch, ..ConsumerOptions::default() };
        let consumer = Consumer::new(endpoint.clone(), queue, options, self.status).when(process.database());
        // An operator can list and replay what is in this table. The collector moves there what the broker set aside.
        let letters = DeadLetterTable::new(pool, inbox);
        process.spawn("consumer", consumer.run(handler, around(letters.clone()), stop.clone()));
        let collector = DeadLetterCollector::new(endpoint, queue, self.collector_status);
        process.spawn("dead-letter collector", collector.run(letters, stop.clone()));
        let letters = DeadLetterTable::new(operations.clone(), inbox);
        process.spawn("dead-letter count", letters.observe(stop.clone()));
        let retention = inbox::retention(operations, name, self.settings.keep_processed);
        process.spawn("inbox retention", retention.run(stop));
    }
}
