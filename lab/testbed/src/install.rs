//! Finds the servers that are installed, and installs them on Debian and Ubuntu.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::command::{is_root, output, shown};
use crate::eventually::eventually;
use crate::guard::AtExit;

/// The packages have about 60 MB, and the network may be slow.
const INSTALL_DEADLINE: Duration = Duration::from_secs(900);

/// Debian's maintainer scripts run this program before they start a service. Exit code 101 forbids the start.
const POLICY_PROGRAM: &str = "/usr/sbin/policy-rc.d";

/// Our program.
const FORBIDS: &str = "#!/bin/sh\n# Until the testbed has installed its servers.\nexit 101\n";

/// Names the directory with PostgreSQL's programs, where several versions are installed.
const POSTGRES_PROGRAMS: &str = "TESTBED_POSTGRES";

/// Finds the directory with `initdb` and `postgres`. The error says in one line how to install them.
pub fn find_postgres() -> Result<PathBuf> {
    if let Some(chosen) = std::env::var_os(POSTGRES_PROGRAMS).map(PathBuf::from) {
        let there = chosen.join("initdb").exists();
        ensure!(there, "{POSTGRES_PROGRAMS} names {}, and there is no initdb", chosen.display());
        return Ok(chosen);
    }
    let mut candidates = Vec::new();
    if let Ok(output) = std::process::Command::new("pg_config").arg("--bindir").output() {
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

/// Finds the script that starts a RabbitMQ node. The error says in one line how to install it.
pub fn find_rabbitmq() -> Result<PathBuf> {
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

/// The Debian packages of the servers that are not installed on this machine.
pub fn missing_packages() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if find_postgres().is_err() {
        packages.push("postgresql");
    }
    if find_rabbitmq().is_err() {
        packages.push("rabbitmq-server");
    }
    packages
}

/// Finds the library that `LD_PRELOAD` loads into a process whose clock is to be wrong.
pub fn find_faketime() -> Result<PathBuf> {
    let architectures = std::fs::read_dir("/usr/lib").context("failed to list /usr/lib")?;
    let library = |folder: PathBuf| folder.join("faketime/libfaketime.so.1");
    let mut candidates = architectures.filter_map(|entry| Some(library(entry.ok()?.path())));
    candidates
        .find(|path| path.exists())
        .context("libfaketime is not installed: `apt-get install -y libfaketime`")
}

/// Succeeds if [`install_packages`] can work here: it must run as root and needs `apt-get`.
pub fn can_install() -> Result<()> {
    ensure!(Path::new("/usr/bin/apt-get").exists(), "packages are installed on Debian and Ubuntu only");
    ensure!(
        is_root(),
        "packages are installed as root only: `sudo apt-get install -y {}`",
        missing_packages().join(" ")
    );
    Ok(())
}

/// Installs packages with `apt-get`, as root. Passes each command to `report` before it runs.
///
/// The services that they bring are not started, so that ports 5432 and 5672 stay free for other uses, and are not enabled: they
/// would listen on all addresses after the next boot.
pub async fn install_packages(packages: &[&str], report: impl Fn(&str)) -> Result<()> {
    can_install()?;
    // The kernel ends the lock with the process. Only root can write here.
    let lock =
        fs::File::create("/run/testbed-install.lock").context("failed to create the installation's lock")?;
    let locked = async || Ok(lock.try_lock().is_ok().then_some(()));
    eventually("another process to end its installation", INSTALL_DEADLINE, locked).await?;
    let _forbidden = forbid_starting_services()?;
    let enabled = enabled_services();
    let install = ["install", "-y", "--no-install-recommends"];
    for arguments in [&["update"][..], &[&install[..], packages].concat()] {
        report(&format!("apt-get {}", arguments.join(" ")));
        apt_get(arguments).await?;
    }
    for link in enabled_services().difference(&enabled) {
        fs::remove_file(link).with_context(|| format!("failed to disable {}", link.display()))?;
    }
    let missing: Vec<_> =
        missing_packages().into_iter().filter(|package| packages.contains(package)).collect();
    ensure!(
        missing.is_empty(),
        "apt-get reports success, but these are still missing: {}",
        missing.join(", ")
    );
    Ok(())
}

/// The links by which systemd starts services and sockets with the machine.
fn enabled_services() -> BTreeSet<PathBuf> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(Path::new("/etc/systemd/system"))
        .filter(|dir| dir.extension().is_some_and(|kind| kind == "wants"))
        .flat_map(|dir| entries(&dir).collect::<Vec<_>>())
        .collect()
}

/// Forbids maintainer scripts to start services until the value is dropped or this process ends, however it ends. If the
/// program were left there, no later package could start its service. If the machine has another program there, that one
/// decides.
fn forbid_starting_services() -> Result<Option<AtExit>> {
    if fs::read_to_string(POLICY_PROGRAM).is_ok_and(|program| program != FORBIDS) {
        return Ok(None);
    }
    let remove = AtExit::run(r#"rm -f -- "$1""#, &[POLICY_PROGRAM.as_ref()])?;
    fs::write(POLICY_PROGRAM, FORBIDS).with_context(|| format!("failed to write {POLICY_PROGRAM}"))?;
    fs::set_permissions(POLICY_PROGRAM, fs::Permissions::from_mode(0o755))?;
    Ok(Some(remove))
}

async fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    let output = output(&mut command, INSTALL_DEADLINE).await?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("E:")).collect();
        bail!("`{}` failed: {}", shown(command.as_std()), errors.join(" "));
    }
    Ok(())
}
