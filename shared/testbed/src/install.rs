//! Installing the servers on Debian and Ubuntu.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;
use tokio::time::timeout;

use crate::guard::AtEnd;
use crate::local::is_root;
use crate::{local_postgres, local_rabbitmq};

/// Some 60 MB over whatever line there is.
const INSTALLED_WITHIN: Duration = Duration::from_secs(900);

/// What Debian's maintainer scripts ask before they start a service. 101 means "no".
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// The Debian packages that would bring the servers which this machine lacks.
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

/// `Ok` if [`install_missing`] can do its work here: as root, where there is `apt-get`. Else the reason.
pub fn can_install() -> Result<()> {
    ensure!(Path::new("/usr/bin/apt-get").exists(), "packages are installed on Debian and Ubuntu only");
    ensure!(
        is_root(),
        "packages are installed as root only: `sudo apt-get install -y {}`",
        missing_packages().join(" ")
    );
    Ok(())
}

/// Installs the missing servers with `apt-get`. `say` hears which packages, before anything happens. The services
/// that the packages bring are not started: ports 5432 and 5672 stay as they were.
pub async fn install_missing(say: impl Fn(&str)) -> Result<()> {
    let packages = missing_packages();
    if packages.is_empty() {
        return Ok(());
    }
    can_install()?;
    let _closed = forbid_starting_services()?;
    say("apt-get update");
    apt_get(&["update"]).await?;
    say(&format!("apt-get install -y {}", packages.join(" ")));
    let install = ["install", "-y", "--no-install-recommends"];
    apt_get(&[&install[..], &packages[..]].concat()).await?;
    let still = missing_packages();
    ensure!(still.is_empty(), "apt-get reports success, but these are still missing: {}", still.join(", "));
    Ok(())
}

/// Until the value is dropped, or this process is gone: a policy that stayed behind would keep every later package
/// from starting its service. If the machine has a policy of its own, that one rules.
fn forbid_starting_services() -> Result<Option<AtEnd>> {
    if Path::new(POLICY).exists() {
        return Ok(None);
    }
    let remove = AtEnd::run(r#"rm -f -- "$1""#, &[POLICY.as_ref()])?;
    fs::write(POLICY, "#!/bin/sh\nexit 101\n").with_context(|| format!("cannot write {POLICY}"))?;
    fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
    Ok(Some(remove))
}

async fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(INSTALLED_WITHIN, command.output()).await;
    let output = output
        .with_context(|| format!("apt-get {} took too long", args[0]))?
        .context("cannot run apt-get")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = errors.lines().filter(|line| line.starts_with("E:")).collect();
        bail!("`apt-get {}` failed: {}", args.join(" "), last.join(" "));
    }
    Ok(())
}
