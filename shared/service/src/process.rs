use std::{
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt,
    pin::Pin,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Context as _;
use axum::Router;
use database::{DatabaseHealth, Pool, PoolKind, is_locked, is_unavailable};
use metrics_exporter_prometheus::PrometheusHandle;
use rabbitmq::{Endpoint, topology::Queue};
use sqlx::migrate::Migrator;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Health, Parts, Supervisor,
    admin::AdminServer,
    environment, http, otlp, request_if_asked,
    settings::{CommonSettings, ServiceSettings},
    telemetry,
};

/// How long [`Process::read_at_start`] waits before it reads again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How long one such read may take. sqlx has no time-out for a server that vanished.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The connections for what no client and no event waits for.
const OPERATIONS_CONNECTIONS: u32 = 4;

/// What a service is called, where it listens by default, and which tables it owns.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    pub name: &'static str,
    /// The prefix of its variables, such as `ORDERS_`.
    pub prefix: &'static str,
    /// The port of its health check when no address is set.
    pub http_port: u16,
    pub migrations: &'static [&'static Migrator],
    /// The queue of an external consumer, which no other client declares.
    pub own_queue: Option<Queue>,
}

/// Reads a service's settings, or exits: with one line if a setting is invalid, or, called as `<service> healthcheck` or
/// `<service> request`, with the answer of the running process.
///
/// # Errors
/// When `parts` cannot change the settings.
pub async fn load<Settings: ServiceSettings>(
    service: &Service,
    parts: &impl Parts,
) -> anyhow::Result<Settings> {
    request_if_asked(service.prefix, service.http_port);
    start_with_large_stacks();
    let mut settings: Settings = environment::load(service.prefix);
    if let Err(problem) = settings.check(service.prefix) {
        environment::exit_invalid_config(&problem);
    }
    parts.settings(settings.common()).await?;
    Ok(settings)
}

/// Starts this program again in its own place, with a variable that Rust reads at the start: the stack of each thread, in
/// bytes.
///
/// The AMQP client reads headers recursively, on a thread that it starts itself. A frame has room for 26,000 arrays in each
/// other, which need 96 MiB; less than a thousand overflow the usual 2 MiB, and end each process that receives them. Only as
/// much memory is used as a stack has needed.
fn start_with_large_stacks() {
    const VARIABLE: &str = "RUST_MIN_STACK";
    let size: u64 = if cfg!(debug_assertions) { 1 << 30 } else { 256 << 20 };
    if let (None, Ok(program)) = (std::env::var_os(VARIABLE), std::env::current_exe()) {
        let arguments = std::env::args_os().skip(1);
        let failed = Command::new(program).args(arguments).env(VARIABLE, size.to_string()).exec();
        environment::exit_invalid_config(&format!("failed to start with larger stacks: {failed}"));
    }
}

/// A service process: how it starts, and how it stops.
///
/// 1. [`start`](Self::start) starts logs, metrics and spans and takes the ports. An invalid setting ends the process here.
/// 2. [`serve`](Self::serve) answers HTTP from the first moment on: health says what is still missing.
/// 3. [`prepare`](Self::prepare) waits for the database, migrates it, and checks the broker's settings once.
/// 4. The service adds its tasks ([`spawn`](Self::spawn), [`RelayTasks`](crate::RelayTasks),
///    [`ConsumerTasks`](crate::ConsumerTasks)).
/// 5. [`run`](Self::run) waits for SIGTERM, SIGINT or a task that ends early, and stops everything within nine seconds.
pub struct Process {
    service: Service,
    settings: CommonSettings,
    operations: Pool,
    endpoint: Endpoint,
    tasks: Supervisor,
    stop: CancellationToken,
    metrics: PrometheusHandle,
    listener: Option<TcpListener>,
    admin: Option<AdminServer>,
    database: DatabaseHealth,
}

impl Process {
    /// # Errors
    /// When logs, metrics or spans cannot be started.
    pub fn start(service: &Service, address: SocketAddr, common: CommonSettings) -> anyhow::Result<Self> {
        let Service { name, prefix, own_queue, .. } = *service;
        let endpoint = Endpoint::new(&common.amqp_url, name)
            .unwrap_or_else(|error| environment::exit_invalid_config(&format!("{prefix}AMQP_URL: {error}")));
        let metrics = telemetry::start(&common.log, common.log_format)?;
        let listener = http::bind(&format!("{prefix}HTTP_ADDRESS"), address);
        let admin = AdminServer::bind(prefix, common.admin_address, common.admin_token.as_ref());
        let stop = CancellationToken::new();
        let mut tasks = Supervisor::new(stop.clone());
        tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));
        if let Some(destination) = common.spans() {
            tasks.spawn_infallible("spans", otlp::start(name, &destination, stop.clone())?);
        }
        Ok(Self {
            service: *service,
            operations: Pool::new(
                &common.database_url,
                "operations",
                OPERATIONS_CONNECTIONS,
                PoolKind::Transactions,
            ),
            endpoint: own_queue.map_or(endpoint.clone(), |queue| endpoint.with_queue(queue)),
            tasks,
            stop,
            metrics,
            listener: Some(listener),
            admin,
            database: DatabaseHealth::default(),
            settings: common,
        })
    }

    /// A probe for [`Health`]: whether the database answers.
    pub fn database(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        self.database.probe()
    }

    pub fn settings(&self) -> &CommonSettings {
        &self.settings
    }

    /// Connections for operators, retention and counts: however long these take, they delay no relay and no consumer.
    pub fn operations(&self) -> Pool {
        self.operations.clone()
    }

    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    /// Adds a task that runs until the stop.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_infallible(name, task);
    }

    /// Serves `/livez`, `/readyz` and `/metrics`.
    pub fn serve_health(&mut self, health: Health) {
        self.serve(Router::new(), health);
    }

    /// Serves `routes` beside `/livez`, `/readyz` and `/metrics`.
    pub fn serve(&mut self, routes: Router, health: Health) {
        if let Some(listener) = self.listener.take() {
            let routes = routes.merge(http::observability(health, self.metrics.clone()));
            self.tasks.spawn("http", http::serve(listener, routes, self.stop.clone()));
        }
    }

    /// Serves the admin API, if an address is configured.
    pub fn serve_admin(&mut self, routes: Router) {
        if let Some(admin) = self.admin.take() {
            self.tasks.spawn("admin", admin.serve(routes, self.stop.clone()));
        }
    }

    /// Waits for the database, brings its schema up to date, and tries the broker once. `false`: the stop came first, and
    /// only [`run`](Self::run) is left to call. An unavailable broker is waited for later, by the tasks that need it; a
    /// broker or a database that refuses this service ends the process.
    ///
    /// Boxed: each service would otherwise compile all that this awaits once more.
    pub fn prepare(&mut self) -> Pin<Box<dyn Future<Output = bool> + '_>> {
        Box::pin(async move {
            let Service { prefix, migrations, .. } = self.service;
            let preparing = database::prepare(&self.settings.database_url, migrations, &self.stop);
            match self.tasks.run_until_stop(preparing).await {
                Some(Ok(true)) => {}
                Some(Ok(false)) | None => return false,
                Some(Err(invalid)) => {
                    environment::exit_invalid_config(&format!("{prefix}DATABASE_URL: {}", invalid.0));
                }
            }
            match self.tasks.run_until_stop(self.endpoint.check()).await {
                Some(Ok(())) => true,
                Some(Err(error)) => environment::exit_invalid_config(&format!("{prefix}AMQP_URL: {error}")),
                None => false,
            }
        })
    }

    /// Runs `read` until it succeeds, after [`prepare`](Self::prepare): it reads `what` the service needs once. `false`: the stop
    /// came first.
    ///
    /// The database can go away again after it was prepared. A service that ended for that would make the outage longer.
    ///
    /// # Errors
    /// The error of `read`, unless the same statement may succeed later.
    pub async fn read_at_start(
        &mut self,
        what: &str,
        read: impl AsyncFn() -> Result<(), sqlx::Error>,
    ) -> anyhow::Result<bool> {
        let reading = async {
            loop {
                let read = timeout(READ_DEADLINE, read()).await;
                match read.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
                    Err(error) if is_unavailable(&error) || is_locked(&error) => {
                        tracing::warn!(%error, "waiting for the database, to read {what}");
                    }
                    ended => return ended,
                }
                sleep(RETRY_INTERVAL).await;
            }
        };
        let read = self.tasks.run_until_stop(reading).await.transpose();
        Ok(read.with_context(|| format!("failed to read {what}"))?.is_some())
    }

    /// Reports the database as available, and watches it from now on. Call it when the service can work.
    pub fn watch_database(&mut self) {
        self.database.set_prepared();
        let watch = self.database.clone().watch(self.settings.database_url.clone(), self.stop.clone());
        self.tasks.spawn_infallible("database watch", watch);
    }

    /// Runs until the stop. Exit code 0 means that the stop was asked for and every task ended in order.
    pub async fn run(self) -> ExitCode {
        self.tasks.run().await
    }
}
