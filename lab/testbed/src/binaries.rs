//! Builds the services' executables and finds them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::command::output;

/// A first build compiles every dependency, possibly on two slow cores.
const BUILD_DEADLINE: Duration = Duration::from_secs(1_800);

static SERVICES_BUILT: OnceCell<()> = OnceCell::const_new();
static LAB_BUILT: OnceCell<()> = OnceCell::const_new();

/// The services and the payment provider.
const SERVICES: [&str; 8] =
    ["--bin", "orders", "--bin", "inventory", "--bin", "billing", "--bin", "payment-provider"];

/// The services composed from the lab's parts, with crash points that can be armed, and the variants of the order
/// write.
const LAB: [&str; 8] =
    ["--bin", "orders-lab", "--bin", "inventory-lab", "--bin", "billing-lab", "--bin", "orders-variant"];

/// The directory in which cargo has built this executable (`target/debug` of `target/debug/deps/…`), if it has.
fn profile_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    exe.ancestors().find(|dir| dir.ends_with("release") || dir.ends_with("debug")).map(Path::to_owned)
}

/// Cargo's target directory, if this executable is in one.
pub(crate) fn target_dir() -> Option<PathBuf> {
    profile_dir()?.parent().map(Path::to_owned)
}

/// The option of cargo that selects the profile of this executable: the programs that it starts have the same.
pub fn profile_option() -> Option<&'static str> {
    profile_dir().filter(|dir| dir.ends_with("release")).map(|_| "--release")
}

/// The root of the checkout, or `None` if there is none: a container holds the binaries only.
pub fn workspace_root() -> Option<PathBuf> {
    let starts = [
        std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from),
        target_dir(),
        std::env::current_dir().ok(),
    ];
    let is_root = |dir: &&Path| dir.join("services/orders/Cargo.toml").exists();
    starts.iter().flatten().find_map(|start| start.ancestors().find(is_root)).map(Path::to_owned)
}

/// Builds the three services and the payment provider, once per process. Does nothing outside a checkout, or if
/// `TESTBED_PREBUILT` is set. With `show`, cargo prints its progress to standard error; without, only a failure is
/// shown.
pub async fn build_services(show: bool) -> Result<()> {
    SERVICES_BUILT.get_or_try_init(|| build(&SERVICES, show)).await.copied()
}

/// Builds the services, their lab programs and the variants, as [`build_services`] does.
pub async fn build_lab(show: bool) -> Result<()> {
    build_services(show).await?;
    LAB_BUILT.get_or_try_init(|| build(&LAB, show)).await.copied()
}

/// Returns a command that runs cargo as from a shell.
///
/// The variables that `cargo run` sets for this process (`CARGO_PKG_NAME` and so on) are removed: some build scripts
/// run again when they change, and half of the workspace would be built again each time.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            cargo.env_remove(&variable);
        }
    }
    cargo
}

/// Builds the binaries as part of the workspace, as the tests are built. Built alone they would use dependencies with
/// other features, and cargo would compile those once more.
async fn build(binaries: &[&str], show: bool) -> Result<()> {
    let Some(root) = workspace_root().filter(|_| std::env::var_os("TESTBED_PREBUILT").is_none()) else {
        return Ok(());
    };
    let mut cargo = cargo();
    cargo.args(["build", "--workspace"]).args(profile_option()).args(binaries);
    if let Some(target) = target_dir() {
        cargo.arg("--target-dir").arg(target);
    }
    cargo.current_dir(root).stdout(Stdio::null());
    cargo.stderr(if show { Stdio::inherit() } else { Stdio::piped() });
    let output = output(&mut cargo, BUILD_DEADLINE).await?;
    if !output.status.success() {
        bail!("failed to build the services:\n{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Finds a service's executable: in the target directory, next to this executable, or one directory up (cargo builds
/// tests into `deps`).
pub fn find(service: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("failed to find this executable")?;
    let built = profile_dir().map(|dir| dir.join(service));
    let near = exe.ancestors().skip(1).take(2).map(|dir| dir.join(service));
    let found = built.into_iter().chain(near).find(|path| path.is_file());
    found.with_context(|| {
        format!("failed to find the executable `{service}`: run `cargo build --bin {service}`")
    })
}
