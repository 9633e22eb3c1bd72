//! A private RabbitMQ broker, or one node of a cluster.

use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use uuid::Uuid;

use crate::command::remove_settings;
use crate::container::{ContainerSpec, RABBITMQ_IMAGE};
use crate::guard::GuardedProcess;
use crate::home::Home;
use crate::install::find_rabbitmq;
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::server::{LocalServer, Probe, Server, check_amqp};

const USER: &str = "shop";
const VHOST: &str = "shop";
/// How long the management API may take to answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const ADVANCED_CONFIG: &str = "advanced.config";

/// A RabbitMQ broker with the operations of a [`Server`]. It keeps its ports and its durable queues until it is dropped.
#[derive(Debug)]
pub struct Rabbitmq {
    server: Server,
    port: u16,
    api_port: u16,
    password: String,
}

/// What the nodes of a cluster have in common. A single broker is a cluster of one node.
#[derive(Debug)]
pub(crate) struct Membership {
    /// Who has it can publish any event: other users of this machine must not be able to guess it.
    password: String,
    /// The password by which the nodes and their tools identify each other.
    pub(crate) cookie: String,
    name_server_port: u16,
    /// The ports of each node: for AMQP and for the management API.
    ports: Vec<(u16, u16)>,
}

impl Membership {
    pub(crate) fn new(nodes: usize) -> Result<Self> {
        let secret = || Uuid::new_v4().simple().to_string();
        let ports = (0..nodes).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<_>>()?;
        Ok(Self { password: secret(), cookie: secret(), name_server_port: free_port()?, ports })
    }
}

impl Rabbitmq {
    /// The memory limit that the broker starts with. See [`Rabbitmq::set_memory_limit`].
    pub const NO_ALARM: &'static str = "1GB";

    /// Starts a new broker where [`Home::choose`] says, with an empty virtual host `shop`, and waits until it accepts
    /// connections.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// Like [`Rabbitmq::private`], but in `home`.
    pub async fn private_in(home: Home) -> Result<Self> {
        Self::start_node(home, &Membership::new(1)?, 0).await
    }

    /// Starts the node with this index. The first one brings the name server of all.
    pub(crate) async fn start_node(home: Home, membership: &Membership, index: usize) -> Result<Self> {
        let (port, api_port) = membership.ports[index];
        let password = membership.password.clone();
        let container = ContainerSpec {
            name: format!("testbed-rabbitmq-{}-{port}", std::process::id()),
            image: RABBITMQ_IMAGE,
            env: vec![
                ("RABBITMQ_DEFAULT_USER", USER.to_owned()),
                ("RABBITMQ_DEFAULT_PASS", password.clone()),
                ("RABBITMQ_DEFAULT_VHOST", VHOST.to_owned()),
            ],
            args: Vec::new(),
            ports: vec![(port, 5672), (api_port, 15672)],
        };
        let probe = Probe::Rabbitmq { port, api_url: url("http", &password, api_port) };
        let local = async { create(membership, index) };
        let server = Server::start_new("RabbitMQ", home, local, container, probe).await?;
        Ok(Self { server, port, api_port, password })
    }

    /// The AMQP URL of the virtual host `shop`.
    pub fn url(&self) -> String {
        format!("{}/{VHOST}", self.base_url())
    }

    /// The AMQP URL without a virtual host.
    pub fn base_url(&self) -> String {
        url("amqp", &self.password, self.port)
    }

    /// Its host and its port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The name of its Erlang node.
    pub fn name(&self) -> String {
        node_name(self.port)
    }

    /// The management API's URL. Its statistics are seconds old: to count the messages in a queue, use AMQP.
    pub fn api_url(&self) -> String {
        url("http", &self.password, self.api_port)
    }

    /// Sets the memory use above which the broker raises an alarm: it then reads nothing more from publishers. One byte
    /// raises the alarm at once; [`Rabbitmq::NO_ALARM`] clears it.
    pub async fn set_memory_limit(&self, limit: &str) -> Result<()> {
        let set = ["set_vm_memory_high_watermark", "absolute", limit];
        self.rabbitmqctl(&set).await.context("failed to set RabbitMQ's memory limit")
    }

    /// Stops the broker, and starts an empty one in its place, at the same ports and with the same user: with this program, for
    /// example of another version, or with its own. Not in containers.
    pub async fn replace(&self, program: Option<&Path>) -> Result<()> {
        self.server.stop().await?;
        let files = self.server.dir()?.path().join("mnesia");
        fs::remove_dir_all(&files)?;
        fs::create_dir(files)?;
        self.server.start_program(program).await
    }

    /// Its version.
    pub async fn version(&self) -> Result<String> {
        let overview = reqwest::Client::new().get(format!("{}/api/overview", self.api_url()));
        let overview = overview.timeout(REQUEST_TIMEOUT).send().await?.error_for_status()?;
        let overview: serde_json::Value = overview.json().await?;
        Ok(overview["rabbitmq_version"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Replaces the node's `advanced.config`, and restarts it. Not in containers.
    pub async fn configure(&self, advanced: &str) -> Result<()> {
        fs::write(self.server.dir()?.path().join(ADVANCED_CONFIG), advanced)?;
        self.server.stop().await?;
        self.server.start().await
    }

    /// Suspends the process that leads a quorum queue of the virtual host `shop`: the broker answers, and the queue takes
    /// and confirms nothing. With `false` it goes on.
    pub async fn suspend_queue(&self, queue: &str, suspend: bool) -> Result<()> {
        let call = if suspend { "suspend" } else { "resume" };
        let expression = format!("ok = sys:{call}({{'shop_{queue}', node()}}).");
        self.rabbitmqctl(&["eval", &expression]).await.context("failed to suspend or resume a queue")
    }

    pub(crate) async fn rabbitmqctl(&self, arguments: &[&str]) -> Result<()> {
        self.run_tool("rabbitmqctl", arguments).await
    }

    /// Runs one of RabbitMQ's tools on this node.
    pub(crate) async fn run_tool(&self, tool: &str, arguments: &[&str]) -> Result<()> {
        self.server.tool(tool, &["-n", &self.name()], arguments).await
    }

    /// Whether the broker accepts AMQP connections at this moment.
    pub async fn answers(&self) -> bool {
        check_amqp(self.port).await.is_ok()
    }
}

impl Deref for Rabbitmq {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn url(scheme: &str, password: &str, port: u16) -> String {
    format!("{scheme}://{USER}:{password}@127.0.0.1:{port}")
}

fn node_name(port: u16) -> String {
    format!("testbed-{port}@localhost")
}

/// Prepares a new, empty node; only the name server is started, with the first one.
fn create(membership: &Membership, index: usize) -> Result<LocalServer> {
    let Membership { cookie, name_server_port, ports, .. } = membership;
    let (port, _) = ports[index];
    let script = find_rabbitmq()?;
    let dir = PrivateDir::new("rabbitmq", None)?;
    let at = |name: &str| dir.path().join(name);
    for name in ["home", "log", "mnesia"] {
        fs::create_dir(at(name))?;
    }
    fs::write(at("rabbitmq.conf"), config(membership, index))?;
    fs::write(at(ADVANCED_CONFIG), "[].\n")?;
    fs::write(at("enabled_plugins"), "[rabbitmq_management].\n")?;
    // An empty file, so that the system's `rabbitmq-env.conf` is not read.
    fs::write(at("env.conf"), "")?;
    let cookie_file = at("home").join(".erlang.cookie");
    fs::write(&cookie_file, cookie)?;
    // Erlang refuses one that others can read.
    fs::set_permissions(cookie_file, Permissions::from_mode(0o400))?;
    let name_server = if index == 0 { Some(start_name_server(*name_server_port, dir.path())?) } else { None };

    let mut node = Command::new(script);
    // Settings for a developer's own broker must not reach this one.
    remove_settings(&mut node, "RABBITMQ_");
    node.current_dir(dir.path())
        .env("HOME", at("home"))
        .env("RABBITMQ_NODENAME", node_name(port))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("RABBITMQ_CONF_ENV_FILE", at("env.conf"))
        .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
        .env("RABBITMQ_ADVANCED_CONFIG_FILE", at(ADVANCED_CONFIG))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", at("mnesia"))
        .env("RABBITMQ_LOG_BASE", at("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_PID_FILE", at("pid"))
        .env("ERL_CRASH_DUMP", "/dev/null")
        .env("ERL_EPMD_PORT", name_server_port.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        // The Erlang VM sizes its tables by `ulimit -n`: without a limit it allocates hundreds of megabytes.
        .env("ERL_MAX_PORTS", "16384");
    Ok(LocalServer::new(node, "TERM", dir, "mnesia").with_companion(name_server))
}

/// Starts Erlang's name server as a child process. Without it, the node would start one as a daemon, which would never
/// end.
fn start_name_server(port: u16, dir: &Path) -> Result<GuardedProcess> {
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &port.to_string()]).current_dir(dir);
    GuardedProcess::spawn(&epmd, &dir.join("epmd.log"))
}

fn config(membership: &Membership, index: usize) -> String {
    let Membership { password, ports, .. } = membership;
    let (port, api_port) = ports[index];
    let mut lines = vec![
        format!("listeners.tcp.1 = 127.0.0.1:{port}"),
        "management.tcp.ip = 127.0.0.1".to_owned(),
        format!("management.tcp.port = {api_port}"),
        format!("default_vhost = {VHOST}"),
        format!("default_user = {USER}"),
        format!("default_pass = {password}"),
        "default_user_tags.administrator = true".to_owned(),
        // The default is a share of the machine's memory, which other programs may need.
        "vm_memory_high_watermark.absolute = 1GB".to_owned(),
        "disk_free_limit.absolute = 50MB".to_owned(),
        // As in `compose.yaml`: the largest message that our publishers send. The default is 128 MiB.
        "max_message_size = 131072".to_owned(),
    ];
    if ports.len() > 1 {
        lines.push("cluster_formation.peer_discovery_backend = classic_config".to_owned());
        // A node that loses the majority stops serving clients, and copies what it has missed when it is back.
        lines.push("cluster_partition_handling = pause_minority".to_owned());
        let member = |(index, (port, _))| {
            format!("cluster_formation.classic_config.nodes.{} = {}", index + 1, node_name(port))
        };
        lines.extend(ports.iter().copied().enumerate().map(member));
    }
    lines.join("\n") + "\n"
}
