//! Installs the servers on Debian and Ubuntu.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::command::{output, shown};
use crate::guard::AtExit;
use crate::user::is_root;
use crate::{local_postgres, local_rabbitmq};

/// The packages have about 60 MB, and the network may be slow.
const INSTALL_DEADLINE: Duration = Duration::from_secs(900);

/// Debian's maintainer scripts run this program before they start a service. Exit code 101 forbids the start.
const POLICY_PROGRAM: &str = "/usr/sbin/policy-rc.d";

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
///
/// The installed services are not started, so that ports 5432 and 5672 stay free for other uses.
pub async fn install_missing(report: impl Fn(&str)) -> Result<()> {
    let packages = missing_packages();
    if packages.is_empty() {
        return Ok(());
    }
    can_install()?;
    let _forbidden = forbid_starting_services()?;
    report("apt-get update");
    apt_get(&["update"]).await?;
    report(&format!("apt-get install -y {}", packages.join(" ")));
    let install = ["install", "-y", "--no-install-recommends"];
    apt_get(&[&install[..], &packages[..]].concat()).await?;
    let missing = missing_packages();
    ensure!(
        missing.is_empty(),
        "apt-get reports success, but these are still missing: {}",
        missing.join(", ")
    );
    Ok(())
}

/// Installs a package with `apt-get`, as root. Passes each command to `report` before it runs. If the package brings a service,
/// that is not started.
pub async fn install_package(package: &str, report: impl Fn(&str)) -> Result<()> {
    can_install()?;
    let _forbidden = forbid_starting_services()?;
    for arguments in [&["update"][..], &["install", "-y", "--no-install-recommends", package]] {
        report(&format!("apt-get {}", arguments.join(" ")));
        apt_get(arguments).await?;
    }
    Ok(())
}

/// Forbids maintainer scripts to start services until the value is dropped or this process ends. If the program were
/// left there, no later package could start its service. If the machine has such a program already, that one decides.
fn forbid_starting_services() -> Result<Option<AtExit>> {
    if Path::new(POLICY_PROGRAM).exists() {
        return Ok(None);
    }
    let remove = AtExit::run(r#"rm -f -- "$1""#, &[POLICY_PROGRAM.as_ref()])?;
    fs::write(POLICY_PROGRAM, "#!/bin/sh\nexit 101\n")
        .with_context(|| format!("failed to write {POLICY_PROGRAM}"))?;
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
