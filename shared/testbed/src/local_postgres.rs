//! PostgreSQL from the machine's own binaries.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::local::{LocalServer, PrivateDir, as_user, is_root};

/// The directory with `initdb` and `postgres`. The error says in one line how to get them.
pub fn find() -> Result<PathBuf> {
    let mut candidates = Vec::new();
    if let Ok(said) = Command::new("pg_config").arg("--bindir").output() {
        candidates.push(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()));
    }
    // Debian and its relatives install several versions side by side: the newest first.
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        let mut versions: Vec<PathBuf> = versions.flatten().map(|entry| entry.path()).collect();
        let number = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        versions.sort_by_key(number);
        candidates.extend(versions.into_iter().rev().map(|version| version.join("bin")));
    }
    candidates.extend(["/usr/pgsql-17/bin", "/opt/homebrew/bin", "/usr/local/bin"].map(PathBuf::from));
    candidates.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    candidates.into_iter().find(|dir| dir.join("initdb").exists() && dir.join("postgres").exists()).context(
        "PostgreSQL's server is not installed: `apt-get install -y postgresql` (Debian, Ubuntu), \
         `dnf install postgresql-server` (Fedora) or `brew install postgresql@17` (macOS) brings it; \
         as root on Debian or Ubuntu, `cargo demo test` does it for you",
    )
}

/// A fresh cluster, not started yet. Durability stays as it is by default (`fsync` on): what we prove is about
/// crashes.
pub(crate) fn prepare(port: u16, password: &str) -> Result<LocalServer> {
    let bin = find()?;
    // `initdb` and `postgres` refuse the superuser.
    let user = is_root().then_some("postgres");
    let dir = PrivateDir::new("postgres", user)?;
    let data = dir.path().join("data");
    let run = |program: &str| match user {
        Some(user) => as_user(user, bin.join(program)),
        None => Command::new(bin.join(program)),
    };

    let password_file = dir.path().join("password");
    std::fs::write(&password_file, password)?;
    // Only the server's user can enter the directory, whatever the file's own mode says.
    std::fs::set_permissions(&password_file, Permissions::from_mode(0o644))?;
    let mut initdb = run("initdb");
    initdb.arg("-D").arg(&data).arg("--pwfile").arg(&password_file).current_dir(dir.path());
    // `--no-sync`: the files of a cluster that holds nothing yet need not survive a power cut.
    initdb.args(["-U", "postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]);
    let made = initdb.output().context("cannot run initdb")?;
    std::fs::remove_file(&password_file)?;
    if !made.status.success() {
        bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr).trim());
    }

    let mut postgres = run("postgres");
    postgres.arg("-D").arg(&data).arg("-p").arg(port.to_string()).current_dir(dir.path());
    for setting in SETTINGS.iter().chain(&["listen_addresses=127.0.0.1", "unix_socket_directories="]) {
        postgres.arg("-c").arg(setting);
    }
    // SIGINT asks for a fast shutdown; SIGTERM would wait until the last client leaves.
    Ok(LocalServer::new(postgres, "INT", dir))
}

/// For containers too: tests of one process share a server, and each brings its own pools.
pub(crate) const SETTINGS: [&str; 1] = ["max_connections=400"];
