use std::process::ExitCode;

use axum::Router;
use clap::Args;
use database::{Pool, PoolKind};
use inbox::{DeadLetterTable, Inbox};
use messaging::{
    Handler, Relay, RelayOptions, RelayStatus, SharedHandler, Store, Wake, replay::ReplayPolicy,
};
use outbox::LogStore;
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Consumer, DeadLetterCollector, Endpoint};

use crate::{
    Health, Needed, Process, Service, load,
    settings::{CommonSettings, ConsumerSettings, PublisherSettings, RelayKind, Settings},
};

/// What a program can replace in a service. Each default is the product's part, so a program of the lab states only the part
/// that it replaces and is the product in everything else.
pub trait Parts {
    /// What a committed event wakes.
    fn wake(&self, relays: Wake) -> Wake {
        relays
    }

    fn start_relays(
        &self,
        relays: RelayTasks,
        process: &mut Process,
    ) -> impl Future<Output = anyhow::Result<()>> {
        match relays.settings.relay {
            RelayKind::Poll => relays.start(process, outbox::relay),
            RelayKind::Log => relays.start(process, |pool, publisher, options| {
                Relay::new(LogStore::new(pool, options.full_scan), publisher, options)
            }),
        }
        async { Ok(()) }
    }

    fn start_consumer(
        &self,
        consumer: ConsumerTasks,
        handler: SharedHandler,
        process: &mut Process,
    ) -> impl Future<Output = ()> {
        consumer.start(process, &handler);
        async {}
    }
}

/// All parts are the product's.
#[derive(Debug, Clone, Copy)]
pub struct Product;

impl Parts for Product {}

/// A service that consumes and publishes, as it starts: its process, its relays and its consumer, from a program's parts. Each
/// service adds what only it has.
pub struct Assembly<P> {
    pub process: Process,
    pub relays: RelayTasks,
    pub consumer: ConsumerTasks,
    pub parts: P,
    /// The admin routes that only this service has.
    pub admin_routes: Router,
}

impl<P: Parts> Assembly<P> {
    /// Reads the settings and starts the process. It does not consume and publish yet.
    pub fn start<Own: Args>(
        service: &Service,
        inbox: Inbox,
        parts: P,
    ) -> anyhow::Result<(Self, Settings<Own>)> {
        let settings: Settings<Own> = load(service);
        let process = Process::start(service, settings.http_address, settings.common.clone())?;
        let relays = RelayTasks::new(&process, settings.publisher.clone());
        let consumer = ConsumerTasks::new(&process, inbox, settings.consumer.clone());
        Ok((Self { process, relays, consumer, parts, admin_routes: Router::new() }, settings))
    }

    /// The health of the parts that every service needs in the same way. Each adds the broker's.
    pub fn health(&self) -> Health {
        Health::new().with("database", Needed::Yes, self.process.database()).with(
            "dead letters",
            Needed::No,
            self.consumer.collector_probe(),
        )
    }

    /// Health of a service that only answers events: without the broker it can do nothing.
    pub fn serve_health(&mut self) {
        let health = self.health().with("broker", Needed::Yes, self.consumer.probe()).with(
            "relays",
            Needed::No,
            self.relays.probe(),
        );
        self.process.serve(Router::new(), health);
    }

    /// Publishes and serves the outbox's admin routes until the stop, and does nothing else. After [`Process::prepare`].
    pub async fn run_relays(self) -> anyhow::Result<ExitCode> {
        let Self { mut process, relays, parts, .. } = self;
        process.watch_database();
        process.serve_admin(relays.admin_routes());
        parts.start_relays(relays, &mut process).await?;
        Ok(process.run().await)
    }

    /// Consumes with `handler`, publishes, and serves the admin API, until the stop. After [`Process::prepare`].
    pub async fn run(self, handler: impl Handler) -> anyhow::Result<ExitCode> {
        let Self { mut process, relays, consumer, parts, admin_routes } = self;
        let handler = SharedHandler::new(handler);
        process.watch_database();
        let admin_routes = admin_routes.merge(consumer.admin_routes(handler.clone()));
        process.serve_admin(admin_routes.merge(relays.admin_routes()));
        parts.start_relays(relays, &mut process).await?;
        parts.start_consumer(consumer, handler, &mut process).await;
        Ok(process.run().await)
    }
}

/// A relay uses one connection, and another while it waits for a standby, or after a step that was given up.
const CONNECTIONS_OF_A_RELAY: u32 = 2;

/// The relays of a process, with the tasks that wake, watch and clean up.
pub struct RelayTasks {
    pub endpoint: Endpoint,
    statuses: Vec<(ConnectionStatus, RelayStatus)>,
    pool: Pool,
    operations: Pool,
    /// Wakes these relays after a commit.
    pub wake: Wake,
    policy: ReplayPolicy,
    pub settings: PublisherSettings,
}

impl RelayTasks {
    pub fn new(process: &Process, mut settings: PublisherSettings) -> Self {
        let CommonSettings { replay_within, .. } = process.settings();
        if settings.relay == RelayKind::Log {
            settings.relay_workers = settings.relay_workers.min(1);
        }
        let connections = u32::from(settings.relay_workers) * CONNECTIONS_OF_A_RELAY;
        Self {
            endpoint: process.endpoint(),
            statuses: ConnectionStatus::of_users("publisher", settings.relay_workers.into())
                .into_iter()
                .map(|status| (status, RelayStatus::default()))
                .collect(),
            pool: process.pool("relay", connections, PoolKind::AsyncCommit),
            operations: process.operations(),
            wake: Wake::new(),
            policy: ReplayPolicy { max_age: *replay_within, force: false },
            settings,
        }
    }

    /// A probe for `Health`: whether all relays are connected to the broker, and their steps succeed.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let statuses = self.statuses.clone();
        move || statuses.iter().try_for_each(|(broker, steps)| broker.state().and_then(|()| steps.state()))
    }

    /// The admin routes of the outbox.
    pub fn admin_routes(&self) -> Router {
        crate::admin::outbox_routes(self.operations.clone(), self.wake.clone(), self.policy)
    }

    /// Starts relays that `relay` makes, of the kind in the settings, and what watches and wakes them.
    pub fn start<P: messaging::Publisher + 'static, S: Store + 'static>(
        self,
        process: &mut Process,
        relay: impl Fn(Pool, ConfirmingPublisher, RelayOptions) -> Relay<P, S>,
    ) {
        let Self { endpoint, statuses, pool, operations, wake, settings, .. } = self;
        let stop = process.stop();
        for (status, steps) in statuses {
            let publisher = ConfirmingPublisher::new(endpoint.clone(), status, settings.confirm_deadline);
            let options = RelayOptions {
                batch: settings.relay_batch,
                poll: settings.relay_poll,
                full_scan: settings.relay_full_scan,
                ..RelayOptions::default()
            };
            let relay = relay(pool.clone(), publisher, options).with_status(steps);
            process.spawn("relay", relay.run(wake.clone(), stop.clone()));
        }
        match (settings.relay, settings.relay_workers) {
            // The log itself announces each commit.
            (RelayKind::Log, _) => {}
            (RelayKind::Poll, 0) => {
                process.spawn("announcer", outbox::announce(operations.clone(), wake, stop.clone()));
            }
            (RelayKind::Poll, _) => process.spawn("listener", outbox::listen(pool, wake, stop.clone())),
        }
        let reads_log = settings.relay == RelayKind::Log;
        process.spawn("log slot", outbox::observe_log(operations.clone(), reads_log, stop.clone()));
        process.spawn("backlog", outbox::observe_backlog(operations.clone(), stop.clone()));
        process.spawn("outbox retention", outbox::retention(operations, settings.keep_published).run(stop));
    }
}

/// The consumer of a process, with its dead letters and the retention of its records.
pub struct ConsumerTasks {
    pub inbox: Inbox,
    endpoint: Endpoint,
    /// The queue of each partition.
    partitions: Vec<(String, ConnectionStatus)>,
    collector_status: ConnectionStatus,
    pool: Pool,
    operations: Pool,
    policy: ReplayPolicy,
    settings: ConsumerSettings,
}

impl ConsumerTasks {
    pub fn new(process: &Process, inbox: Inbox, settings: ConsumerSettings) -> Self {
        let CommonSettings { replay_within, .. } = process.settings();
        let partitions = process.partitions(inbox.queue);
        let statuses = ConnectionStatus::of_users("consumer", partitions.len());
        let connections = settings.consumer_connections - 1 + u32::try_from(partitions.len()).unwrap_or(1);
        Self {
            inbox,
            endpoint: process.endpoint(),
            partitions: partitions.into_iter().zip(statuses).collect(),
            collector_status: ConnectionStatus::new("collector"),
            pool: process.pool("consumer", connections, PoolKind::Transactions),
            operations: process.operations(),
            policy: ReplayPolicy { max_age: *replay_within, force: false },
            settings,
        }
    }

    /// The connections of the handler.
    pub fn pool(&self) -> Pool {
        self.pool.clone()
    }

    /// A probe for `Health`: whether the consumers of all partitions are connected to the broker.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let statuses = self.statuses();
        move || statuses.iter().try_for_each(ConnectionStatus::state)
    }

    fn statuses(&self) -> Vec<ConnectionStatus> {
        self.partitions.iter().map(|(_, status)| status.clone()).collect()
    }

    /// A probe for `Health`: whether dead letters are collected, and all of them can be saved.
    pub fn collector_probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        let status = self.collector_status.clone();
        move || status.state()
    }

    /// Tells of which partitions this instance is known to be the active consumer, if each partition was found empty within the
    /// last ten seconds.
    pub fn caught_up(&self) -> impl Fn() -> Option<Vec<i16>> + Send + Sync + 'static {
        let statuses = self.statuses();
        move || {
            let found: Option<Vec<_>> = statuses.iter().map(ConnectionStatus::caught_up).collect();
            Some(
                (0..)
                    .zip(found?)
                    .filter_map(|(partition, is_active)| is_active.then_some(partition))
                    .collect(),
            )
        }
    }

    /// The admin routes of the dead letters. `handler` applies those that are replayed.
    pub fn admin_routes(&self, handler: SharedHandler) -> Router {
        crate::admin::dead_letter_routes(self.pool.clone(), self.inbox, handler, self.policy)
    }

    /// Starts a consumer for each partition.
    pub fn start(self, process: &mut Process, handler: &SharedHandler) {
        let Self { inbox, endpoint, pool, operations, .. } = self;
        let Inbox { consumer: name, queue, .. } = inbox;
        let stop = process.stop();
        // An operator can list and replay what is in this table. The collector moves there what the broker set aside.
        let letters = DeadLetterTable::new(pool, inbox);
        for (partition, status) in self.partitions {
            let consumer = Consumer::new(endpoint.clone(), queue, status)
                .partition(partition)
                .prefetch(self.settings.prefetch)
                .when(process.database());
            process.spawn("consumer", consumer.run(handler.clone(), letters.clone(), stop.clone()));
        }
        let collector = DeadLetterCollector::new(endpoint, queue, self.collector_status);
        process.spawn("dead-letter collector", collector.run(letters, stop.clone()));
        let letters = DeadLetterTable::new(operations.clone(), inbox);
        process.spawn("dead-letter count", letters.observe(stop.clone()));
        let retention = inbox::retention(operations, name, self.settings.keep_processed);
        process.spawn("inbox retention", retention.run(stop));
    }
}
