//! Where the built services are, and building them when they are not up to date.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// A first build compiles every dependency, on two slow cores.
const BUILT_WITHIN: Duration = Duration::from_secs(1_800);

static BUILT: OnceCell<()> = OnceCell::const_new();
static DRILLS_BUILT: OnceCell<()> = OnceCell::const_new();
static VARIANTS_BUILT: OnceCell<()> = OnceCell::const_new();

/// All of these are built as part of the workspace, which is how the tests are built: by themselves they would be built from
/// dependencies with other features, all of them once more.
const SERVICES: [&str; 8] =
    ["--bin", "orders", "--bin", "inventory", "--bin", "billing", "--bin", "provider"];
/// Under names of their own, so that a drill build is never taken for the real thing. The provider has none: it is not
/// one of ours.
#[rustfmt::skip]
const DRILLS: [&str; 8] = [
    "--features", "orders/drill,inventory/drill,billing/drill",
    "--bin", "orders-drill", "--bin", "inventory-drill", "--bin", "billing-drill",
];
const VARIANTS: [&str; 2] = ["--bin", "orders-variant"];

/// Cargo's target directory, if our own executable is in one (`target/release/demo`, `target/release/deps/…`).
pub(crate) fn target_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let profile = exe.ancestors().find(|dir| dir.ends_with("release") || dir.ends_with("debug"))?;
    profile.parent().map(Path::to_owned)
}

/// The root of the checkout, or `None` where there is none (a container holds the binaries only).
pub fn workspace_root() -> Option<PathBuf> {
    let starts = [
        std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from),
        target_dir(),
        std::env::current_dir().ok(),
    ];
    let is_root = |dir: &&Path| dir.join("services/orders/Cargo.toml").exists();
    starts.iter().flatten().find_map(|start| start.ancestors().find(is_root)).map(Path::to_owned)
}

/// Builds the three services and the provider, once per process. Does nothing outside a checkout, or if `TESTBED_PREBUILT` is set.
/// With `show`, cargo's progress goes to our standard error; without it only a failure is shown.
pub async fn build_services(show: bool) -> Result<()> {
    BUILT.get_or_try_init(|| build(&SERVICES, show)).await.copied()
}

/// Builds the drill builds of the services, likewise, and what they are run with.
pub async fn build_drill_services(show: bool) -> Result<()> {
    build_services(show).await?;
    DRILLS_BUILT.get_or_try_init(|| build(&DRILLS, show)).await.copied()
}

/// Builds the services, and the order service done wrong.
pub async fn build_variants(show: bool) -> Result<()> {
    build_services(show).await?;
    VARIANTS_BUILT.get_or_try_init(|| build(&VARIANTS, show)).await.copied()
}

/// Cargo, as if from a shell. What `cargo run` tells us about ourselves (`CARGO_PKG_NAME` and so on) is not passed on: there are
/// build scripts that run again when it changes, and with them half of the workspace would be built again each time.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|ours| name.starts_with(ours))
        {
            cargo.env_remove(&variable);
        }
    }
    cargo
}

async fn build(what: &[&str], show: bool) -> Result<()> {
    let Some(root) = workspace_root().filter(|_| std::env::var_os("TESTBED_PREBUILT").is_none()) else {
        return Ok(());
    };
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--workspace"]).args(what);
    if let Some(target) = target_dir() {
        cargo.arg("--target-dir").arg(target);
    }
    cargo.current_dir(root).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    cargo.stderr(if show { Stdio::inherit() } else { Stdio::piped() });
    let output =
        timeout(BUILT_WITHIN, cargo.output()).await.context("building the services took too long")?;
    let output = output.context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the services do not build:\n{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// A service's executable: beside our own one, or one directory up (tests are built into `deps`).
pub fn find(service: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this executable is")?;
    let built = target_dir().map(|target| target.join("release").join(service));
    let beside = exe.ancestors().skip(1).take(2).map(|dir| dir.join(service));
    let found = built.into_iter().chain(beside).find(|path| path.is_file());
    found.with_context(|| {
        format!("the executable `{service}` is missing: `cargo build --release --bin {service}`")
    })
}
