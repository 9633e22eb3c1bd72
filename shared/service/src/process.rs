use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    pin::Pin,
    process::{Command, ExitCode},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::Router;
use database::{DatabaseHealth, DatabaseUrl, Pool, PoolKind};
use metrics_exporter_prometheus::PrometheusHandle;
use rabbitmq::{
    Endpoint,
    queues::{self, Queue},
};
use sqlx::migrate::Migrator;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Supervisor,
    admin::AdminServer,
    environment,
    http::{self, Health},
    otlp,
    settings::{CommonSettings, ServiceSettings},
    telemetry,
};

/// The connections for what no client and no event waits for.
const OPERATIONS_CONNECTIONS: u32 = 4;

/// What a service is called, where it listens by default, and which tables it owns.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    pub name: &'static str,
    /// The prefix of its variables, for example `ORDERS_`.
    pub prefix: &'static str,
    /// The port of its health check when no address is set.
    pub http_port: u16,
    pub migrations: &'static [&'static Migrator],
    /// The queue of an external consumer, which no other client declares.
    pub own_queue: Option<Queue>,
}

/// The command line of a service, with the variable and the default of each setting: what [`load`] reads, and `docs/settings.md`
/// lists.
pub fn command<Settings: ServiceSettings>(service: &Service) -> clap::Command {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, service.http_port)).to_string();
    let command = Settings::command()
        .name(service.name)
        .about(format!("The service {}. Each setting is a variable or an option.", service.name))
        .long_about(None)
        .mut_arg("http_address", |argument| argument.required(false).default_value(address));
    environment::with_variables(command, service.prefix)
}

/// Reads a service's settings, or exits: with one line if a setting is invalid, or, called as `<service> healthcheck`,
/// `<service> get PATH` or `<service> post PATH --operator NAME`, with the answer of the running process.
pub fn load<Settings: ServiceSettings>(service: &Service) -> Settings {
    request_if_asked(service.prefix, service.http_port);
    start_with_large_stacks();
    let settings: Settings = environment::parse_or_exit(&command::<Settings>(service), service.prefix);
    if let Err(problem) = settings.check(service.prefix) {
        environment::exit_invalid_config(&problem);
    }
    settings
}

/// The admin API answers within thirty seconds.
const ANSWER_DEADLINE: Duration = Duration::from_secs(35);

/// How long the server may take to say how many connections it has.
const BUDGET_DEADLINE: Duration = Duration::from_secs(5);

/// `<service> healthcheck`, `<service> get PATH` and `<service> post PATH --operator NAME`: sends the request to the process in
/// the same container, whose image has neither a shell nor `curl`, prints the answer with its head, and exits. `healthcheck`
/// fails unless `/readyz` answers 200. `port` is the public one when no address is set.
pub fn request_if_asked(prefix: &str, port: u16) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (operator, path) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["healthcheck"] => (None, "/readyz"),
        ["get", path] => (None, path),
        ["post", path, "--operator", name] => (Some(name), path),
        // Without a name, the log would not say who has replayed or discarded something.
        ["post", ..] => {
            let _ = writeln!(io::stderr(), "usage: post PATH --operator NAME (the body is standard input)");
            std::process::exit(2);
        }
        _ => return,
    };
    let answer = request(prefix, port, path, operator).unwrap_or_else(|error| error.to_string());
    let expected = if arguments.len() == 1 { "HTTP/1.0 200" } else { "HTTP/1.0 " };
    let printed = write!(io::stdout(), "{answer}");
    std::process::exit(i32::from(printed.is_err() || !answer.starts_with(expected)));
}

/// A path under `/admin` goes to the admin API, with the token of the environment: on a command line every user could
/// read it. With an operator it is a POST, whose body is standard input.
fn request(prefix: &str, port: u16, path: &str, operator: Option<&str>) -> io::Result<String> {
    let is_admin = path.starts_with("/admin/");
    let listener = if is_admin { "ADMIN" } else { "HTTP" };
    let address = std::env::var(format!("{prefix}{listener}_ADDRESS")).unwrap_or_default().parse();
    let address = address.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut head = "Host: localhost\r\nContent-Type: application/json".to_owned();
    if is_admin {
        let tokens = environment::secret(&format!("{prefix}ADMIN_TOKEN")).map_err(io::Error::other)?;
        let token = tokens.as_deref().and_then(|tokens| tokens.split(',').next()).unwrap_or_default();
        head += &format!("\r\nAuthorization: Bearer {token}");
    }
    let (mut method, mut body) = ("GET", String::new());
    if let Some(name) = operator {
        // What a header carries. The admin API would log any other name as `unnamed`.
        if name.is_empty() || !name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(io::Error::other("--operator: one or more printable ASCII characters"));
        }
        head += &format!("\r\nX-Operator: {name}");
        (method, body) = ("POST", io::read_to_string(io::stdin())?);
    }
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(stream, "{method} {path} HTTP/1.0\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

/// Starts this program again in its own place, with a variable that Rust reads at the start: the stack of each thread, in
/// bytes.
///
/// The AMQP client reads headers recursively, on a thread that it starts itself. A frame has room for 26,000 arrays in each
/// other, which need 96 MiB; less than a thousand overflow the usual 2 MiB, and end each process that receives them.
/// Only as much memory is used as a stack has needed.
fn start_with_large_stacks() {
    const VARIABLE: &str = "RUST_MIN_STACK";
    let size: u64 = if cfg!(debug_assertions) { 1 << 30 } else { 256 << 20 };
    match std::env::var(VARIABLE) {
        Ok(set) if set.parse::<u64>().is_ok_and(|set| set >= size) => {}
        Ok(set) => {
            let problem = format!("{VARIABLE} is {set:?}: at least {size} is needed; it need not be set");
            environment::exit_invalid_config(&problem);
        }
        Err(_) => {
            let program = std::env::current_exe();
            let arguments = std::env::args_os().skip(1);
            let failed = program
                .map(|program| Command::new(program).args(arguments).env(VARIABLE, size.to_string()).exec());
            let (Ok(failed) | Err(failed)) = failed;
            environment::exit_invalid_config(&format!("failed to start with larger stacks: {failed}"));
        }
    }
}

/// The pools of a process, with their sizes. Cheap to clone.
#[derive(Clone, Default)]
struct Connections {
    sizes: Arc<Mutex<Vec<(&'static str, u32)>>>,
    health: DatabaseHealth,
}

impl Connections {
    fn pool(&self, url: &DatabaseUrl, name: &'static str, connections: u32, kind: PoolKind) -> Pool {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).push((name, connections));
        Pool::new(url, name, connections, kind).with_health(self.health.clone())
    }

    /// Logs the connection budget: the most connections of this process, and how many the server has for all.
    async fn log(self, operations: Pool) {
        let mut pools = self.sizes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        pools.push(("listener and health", 2));
        let connections: u32 = pools.iter().map(|(_, connections)| connections).sum();
        let pools: Vec<_> = pools.iter().map(|(name, connections)| format!("{name} {connections}")).collect();
        let pools = pools.join(", ");
        let available = sqlx::query_scalar(
            "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int",
        )
        .fetch_one(&operations);
        let Ok(Ok::<i32, _>(available)) = timeout(BUDGET_DEADLINE, available).await else {
            tracing::info!(connections, pools, "connection budget; the server's limit is unknown");
            return;
        };
        let instances = i64::from(available) / i64::from(connections);
        tracing::info!(
            connections,
            pools,
            available,
            instances,
            "connection budget: the server has room for so many of these"
        );
        if instances < 1 {
            tracing::warn!(
                connections,
                available,
                "the server has fewer connections than this process may open"
            );
        }
    }
}

/// How often an unavailable broker is tried again.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Checks the number of partitions as soon as the broker is available. With another number this process would neither publish nor
/// consume, for as long as it runs. Any other refusal is shown by health: orders are accepted meanwhile.
async fn check_when_available(endpoint: Endpoint, prefix: &str) {
    loop {
        match endpoint.check().await {
            Ok(true) => return,
            Err(error @ rabbitmq::Error::OtherPartitions { .. }) => exit_other_partitions(prefix, &error),
            Ok(false) | Err(_) => sleep(CHECK_INTERVAL).await,
        }
    }
}

fn exit_other_partitions(prefix: &str, error: &rabbitmq::Error) -> ! {
    environment::exit_invalid_config(&format!("{prefix}PARTITIONS: {error}"))
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
    connections: Connections,
    operations: Pool,
    endpoint: Endpoint,
    tasks: Supervisor,
    stop: CancellationToken,
    metrics: PrometheusHandle,
    listener: Option<TcpListener>,
    admin: Option<AdminServer>,
}

impl Process {
    pub fn start(service: &Service, address: SocketAddr, common: CommonSettings) -> anyhow::Result<Self> {
        let Service { name, prefix, own_queue, .. } = *service;
        let endpoint = Endpoint::new(&common.amqp_url, name)
            .unwrap_or_else(|error| environment::exit_invalid_config(&format!("{prefix}AMQP_URL: {error}")));
        let endpoint = endpoint.with_partitions(common.partitions);
        let metrics = telemetry::start(&common.log, common.log_format)?;
        let listener = http::bind(&format!("{prefix}HTTP_ADDRESS"), address);
        let admin = AdminServer::bind(prefix, common.admin_address, common.admin_token.as_ref());
        let stop = CancellationToken::new();
        let mut tasks = Supervisor::new(stop.clone());
        tasks.spawn_infallible("metrics", telemetry::upkeep(metrics.clone(), stop.clone()));
        if let Some(endpoint) = &common.otlp_endpoint {
            let sending = otlp::start(name, endpoint, common.trace_ratio, stop.clone())?;
            tasks.spawn_infallible("spans", sending);
        }
        let connections = Connections::default();
        Ok(Self {
            service: *service,
            operations: connections.pool(
                &common.database_url,
                "operations",
                OPERATIONS_CONNECTIONS,
                PoolKind::Transactions,
            ),
            connections,
            endpoint: own_queue.map_or(endpoint.clone(), |queue| endpoint.with_queue(queue)),
            tasks,
            stop,
            metrics,
            listener: Some(listener),
            admin,
            settings: common,
        })
    }

    /// A probe for [`Health`]: whether the database answers.
    pub fn database(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        self.connections.health.probe()
    }

    pub fn settings(&self) -> &CommonSettings {
        &self.settings
    }

    /// A pool of connections to the service's database, which counts in the connection budget.
    pub fn pool(&self, name: &'static str, connections: u32, kind: PoolKind) -> Pool {
        self.connections.pool(&self.settings.database_url, name, connections, kind)
    }

    /// Connections for operators, retention and counts: however long these take, they delay no relay and no consumer.
    pub fn operations(&self) -> Pool {
        self.operations.clone()
    }

    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The partitions of a queue. That of an external consumer has one.
    pub(crate) fn partitions(&self, queue: &str) -> Vec<String> {
        let number = if self.service.own_queue.is_some() { 1 } else { self.settings.partitions };
        queues::partitions(queue, number).collect()
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
                Some(Ok(true)) => true,
                Some(Ok(false)) => {
                    let (endpoint, stop) = (self.endpoint.clone(), self.stop.clone());
                    // It may end early: a task of the supervisor may not.
                    tokio::spawn(async move {
                        stop.run_until_cancelled(check_when_available(endpoint, prefix)).await
                    });
                    true
                }
                Some(Err(error @ rabbitmq::Error::OtherPartitions { .. })) => {
                    exit_other_partitions(prefix, &error)
                }
                Some(Err(error)) => environment::exit_invalid_config(&format!("{prefix}AMQP_URL: {error}")),
                None => false,
            }
        })
    }

    /// Reports the database as available, and watches it from now on. Call it when the service can work.
    pub fn watch_database(&mut self) {
        let health = self.connections.health.clone();
        health.set_prepared();
        let watch = health.watch(self.settings.database_url.clone(), self.stop.clone());
        self.tasks.spawn_infallible("database watch", watch);
        let (budget, operations, stop) =
            (self.connections.clone(), self.operations.clone(), self.stop.clone());
        // It may end early: a task of the supervisor may not.
        tokio::spawn(async move { stop.run_until_cancelled(budget.log(operations)).await });
    }

    /// Runs until the stop. Exit code 0 means that the stop was requested and every task ended in order.
    pub async fn run(self) -> ExitCode {
        self.tasks.run().await
    }
}
