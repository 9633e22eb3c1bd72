//! RabbitMQ as a local process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::guard::GuardedProcess;
use crate::local_server::LocalServer;
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::server_settings::{RABBITMQ_USER, RABBITMQ_VHOST};

/// Finds the script that starts a RabbitMQ node. The error says in one line how to install it.
pub fn find() -> Result<PathBuf> {
    // Debian's `/usr/sbin/rabbitmq-server` is a wrapper that changes the user and redirects the log. This runs the
    // script that the wrapper calls.
    let mut candidates: Vec<PathBuf> = [
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
        "/opt/homebrew/sbin/rabbitmq-server",
        "/usr/local/sbin/rabbitmq-server",
    ]
    .map(PathBuf::from)
    .into();
    let path = std::env::var_os("PATH");
    candidates.extend(path.iter().flat_map(std::env::split_paths).map(|dir| dir.join("rabbitmq-server")));
    candidates.into_iter().find(|script| script.exists()).context(
        "RabbitMQ is not installed: run `apt-get install -y rabbitmq-server` (Debian, Ubuntu), \
         `dnf install rabbitmq-server` (Fedora) or `brew install rabbitmq` (macOS); \
         as root on Debian or Ubuntu, `cargo demo test` installs it",
    )
}

/// Prepares a new, empty node; only its name server is started. `port` is for AMQP, `api_port` for the management API.
pub(crate) fn create(port: u16, api_port: u16, password: &str) -> Result<LocalServer> {
    let script = find()?;
    let dir = PrivateDir::new("rabbitmq", None)?;
    let at = |name: &str| dir.path().join(name);
    for name in ["home", "log", "mnesia"] {
        std::fs::create_dir(at(name))?;
    }
    std::fs::write(at("rabbitmq.conf"), config(port, api_port, password))?;
    std::fs::write(at("advanced.config"), "[].\n")?;
    std::fs::write(at("enabled_plugins"), "[rabbitmq_management].\n")?;
    // An empty file, so that the system's `rabbitmq-env.conf` is not read.
    std::fs::write(at("env.conf"), "")?;

    let epmd_port = free_port()?;
    let epmd = start_name_server(epmd_port, dir.path())?;

    let mut node = Command::new(script);
    for (name, _) in std::env::vars_os() {
        // Settings for a developer's own broker must not reach this one.
        if name.to_string_lossy().starts_with("RABBITMQ_") {
            node.env_remove(name);
        }
    }
    node.current_dir(dir.path())
        .env("HOME", at("home"))
        .env("RABBITMQ_NODENAME", format!("testbed-{port}@localhost"))
        .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
        .env("RABBITMQ_NODE_PORT", port.to_string())
        .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
        .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
        .env("RABBITMQ_CONF_ENV_FILE", at("env.conf"))
        .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
        .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", at("mnesia"))
        .env("RABBITMQ_LOG_BASE", at("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_PID_FILE", at("pid"))
        .env("ERL_CRASH_DUMP", "/dev/null")
        .env("ERL_EPMD_PORT", epmd_port.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        // The Erlang VM sizes its tables by `ulimit -n`: without a limit it allocates hundreds of megabytes.
        .env("ERL_MAX_PORTS", "16384");
    Ok(LocalServer::new(node, "TERM", dir).with_companion(epmd))
}

/// Starts Erlang's name server as a child process. Without it, the node would start one as a daemon, which would never
/// end.
fn start_name_server(port: u16, dir: &Path) -> Result<GuardedProcess> {
    let mut epmd = Command::new("epmd");
    epmd.args(["-address", "127.0.0.1", "-port", &port.to_string()]).current_dir(dir);
    GuardedProcess::spawn(&epmd, &dir.join("epmd.log"))
}

fn config(port: u16, api_port: u16, password: &str) -> String {
    let lines = [
        format!("listeners.tcp.1 = 127.0.0.1:{port}"),
        "management.tcp.ip = 127.0.0.1".to_owned(),
        format!("management.tcp.port = {api_port}"),
        format!("default_vhost = {RABBITMQ_VHOST}"),
        format!("default_user = {RABBITMQ_USER}"),
        format!("default_pass = {password}"),
        "default_user_tags.administrator = true".to_owned(),
        // The default is a share of the machine's memory, which other programs may need.
        "vm_memory_high_watermark.absolute = 1GB".to_owned(),
        "disk_free_limit.absolute = 50MB".to_owned(),
        // As in `compose.yaml`: the largest message that our publishers send. The default is 128 MiB.
        "max_message_size = 1048576".to_owned(),
    ];
    lines.join("\n") + "\n"
}
