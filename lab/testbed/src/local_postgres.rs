//! PostgreSQL as a local process.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::local_server::LocalServer;
use crate::private_dir::PrivateDir;
use crate::server_settings::POSTGRES_MAX_CONNECTIONS;
use crate::user::{command_as, is_root};

/// Finds the directory with `initdb` and `postgres`. The error says in one line how to install them.
pub fn find() -> Result<PathBuf> {
    let mut candidates = Vec::new();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        candidates.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    // Debian and its derivatives can install several versions at once. The newest comes first.
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        let mut versions: Vec<PathBuf> = versions.flatten().map(|entry| entry.path()).collect();
        let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        versions.sort_by_key(number);
        candidates.extend(versions.into_iter().rev().map(|version| version.join("bin")));
    }
    candidates.extend(["/usr/pgsql-17/bin", "/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from));
    // Homebrew links no formula whose name has a version.
    for prefix in ["/opt/homebrew", "/usr/local"] {
        candidates.extend((15..=18).rev().map(|n| PathBuf::from(format!("{prefix}/opt/postgresql@{n}/bin"))));
    }
    candidates.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    candidates.into_iter().find(|dir| dir.join("initdb").exists() && dir.join("postgres").exists()).context(
        "PostgreSQL's server is not installed: run `apt-get install -y postgresql` (Debian, Ubuntu), \
         `dnf install postgresql-server` (Fedora) or `brew install postgresql@17` (macOS); \
         as root on Debian or Ubuntu, `cargo demo test` installs it",
    )
}

/// Creates a new, empty cluster; the server is not started. Durability keeps its default (`fsync` is on): the tests
/// crash the server.
pub(crate) fn create(port: u16, password: &str) -> Result<LocalServer> {
    let bin = find()?;
    // `initdb` and `postgres` refuse to run as root.
    let user = is_root().then_some("postgres");
    let dir = PrivateDir::new("postgres", user)?;
    let data = dir.directory_of(user, "data")?;
    let run = |program: &str| match user {
        Some(user) => command_as(user, bin.join(program)),
        None => Command::new(bin.join(program)),
    };

    let password_file = dir.secret_of(user, "password", password)?;
    let mut initdb = run("initdb");
    initdb.arg("-D").arg(&data).arg("--pwfile").arg(&password_file).current_dir(dir.path());
    // `--no-sync`: the files of an empty cluster need not survive a power cut.
    initdb.args(["-U", "postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]);
    let output = initdb.output().context("failed to run `initdb`")?;
    std::fs::remove_file(&password_file)?;
    if !output.status.success() {
        bail!("`initdb` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }

    let mut postgres = run("postgres");
    postgres.arg("-D").arg(&data).arg("-p").arg(port.to_string()).current_dir(dir.path());
    for setting in [POSTGRES_MAX_CONNECTIONS, "listen_addresses=127.0.0.1", "unix_socket_directories="] {
        postgres.arg("-c").arg(setting);
    }
    // SIGINT asks for a fast shutdown. SIGTERM would wait until the last client has disconnected.
    Ok(LocalServer::new(postgres, "INT", dir))
}
