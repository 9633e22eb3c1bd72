//! Installs the servers on Debian and Ubuntu.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::command::{output, shown};
use crate::eventually::eventually;
use crate::guard::AtExit;
use crate::user::is_root;
use crate::{local_postgres, local_rabbitmq};

/// The packages have about 60 MB, and the network may be slow.
const INSTALL_DEADLINE: Duration = Duration::from_secs(900);

/// Debian's maintainer scripts run this program before they start a service. Exit code 101 forbids the start.
const POLICY_PROGRAM: &str = "/usr/sbin/policy-rc.d";

/// How our program begins its second line, before the id of the process that has written it.
const MARK: &str = "# Until the testbed has installed its servers: process ";

/// The Debian packages of the servers that are not installed on this machine.
pub fn missing_packages() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if local_postgres::find().is_err() {
        packages.push("postgresql");
    }
    if local_rabbitmq::find().is_err() {
        packages.push("rabbitmq-server");
    }
    packages
}

/// Succeeds if [`install_missing`] can work here: it has to run as root and needs `apt-get`.
pub fn can_install() -> Result<()> {
    ensure!(Path::new("/usr/bin/apt-get").exists(), "packages are installed on Debian and Ubuntu only");
    ensure!(
        is_root(),
        "packages are installed as root only: `sudo apt-get install -y {}`",
        missing_packages().join(" ")
    );
    Ok(())
}

/// Installs the missing servers with `apt-get`. Passes each command to `report` before it runs.
pub async fn install_missing(report: impl Fn(&str)) -> Result<()> {
    let packages = missing_packages();
    if packages.is_empty() {
        return Ok(());
    }
    install_packages(&packages, report).await?;
    let missing = missing_packages();
    ensure!(
        missing.is_empty(),
        "apt-get reports success, but these are still missing: {}",
        missing.join(", ")
    );
    Ok(())
}

/// Installs packages with `apt-get`, as root. Passes each command to `report` before it runs.
///
/// The services that they bring are not started, so that ports 5432 and 5672 stay free for other uses, and are not enabled: they
/// would listen on all addresses after the next boot.
pub async fn install_packages(packages: &[&str], report: impl Fn(&str)) -> Result<()> {
    can_install()?;
    let _forbidden = forbid_starting_services().await?;
    let enabled = enabled_services();
    let install = ["install", "-y", "--no-install-recommends"];
    for arguments in [&["update"][..], &[&install[..], packages].concat()] {
        report(&format!("apt-get {}", arguments.join(" ")));
        apt_get(arguments).await?;
    }
    for link in enabled_services().difference(&enabled) {
        fs::remove_file(link).with_context(|| format!("failed to disable {}", link.display()))?;
    }
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

/// Forbids maintainer scripts to start services until the value is dropped or this process ends. If the program were
/// left there, no later package could start its service. If the machine has another program there, that one decides. One
/// of another process of ours is waited for: when that process ends, the program is removed.
async fn forbid_starting_services() -> Result<Option<AtExit>> {
    let policy = Path::new(POLICY_PROGRAM);
    let wait = "another process to end its installation";
    eventually(wait, INSTALL_DEADLINE, async || Ok((!is_installing(policy)).then_some(()))).await?;
    if fs::read_to_string(policy).is_ok_and(|program| !program.contains(MARK)) {
        return Ok(None);
    }
    let remove = AtExit::run(r#"rm -f -- "$1""#, &[POLICY_PROGRAM.as_ref()])?;
    fs::write(policy, format!("#!/bin/sh\n{MARK}{}\nexit 101\n", std::process::id()))
        .with_context(|| format!("failed to write {POLICY_PROGRAM}"))?;
    fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
    Ok(Some(remove))
}

/// Whether the program was written by a process that still runs. One whose process was killed together with its watcher is
/// a left-over.
fn is_installing(policy: &Path) -> bool {
    let program = fs::read_to_string(policy).unwrap_or_default();
    let process = program.lines().find_map(|line| line.strip_prefix(MARK));
    process.is_some_and(|process| Path::new("/proc").join(process).exists())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_dir::PrivateDir;

    #[test]
    fn a_left_over_of_a_killed_process_is_no_installation() -> Result<()> {
        let dir = PrivateDir::new("policy", None)?;
        let policy = dir.path().join("policy-rc.d");
        for (program, expected) in [
            (format!("#!/bin/sh\n{MARK}{}\nexit 101\n", std::process::id()), true),
            (format!("#!/bin/sh\n{MARK}{}\nexit 101\n", u32::MAX), false),
            ("#!/bin/sh\nexit 101\n".to_owned(), false),
        ] {
            fs::write(&policy, &program)?;
            assert_eq!(is_installing(&policy), expected, "{program}");
        }
        Ok(())
    }
}
