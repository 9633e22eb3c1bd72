//! What this machine is and has, apart from the servers: what goes wrong first on macOS, in Windows' Linux (WSL) and on
//! ARM, as far as it can be seen before anything is started.

use std::env::consts;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;
use tokio::time::{Duration, timeout};

use super::Check;
use crate::paths;

/// For the servers, the services and their data. A build needs more.
const MEMORY_NEEDED: u64 = 1 << 30;
/// For a release build with its dependencies, and some data.
const DISK_NEEDED: u64 = 4 << 30;
/// For the sockets of the load, of the services and of the servers.
const OPEN_FILES_NEEDED: u64 = 1_024;
/// The first curl that has `--json`, which the README uses.
const CURL_NEEDED: (u32, u32) = (7, 82);

/// How long a program may take to say its version. A broken installation can wait endlessly.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn checks() -> Vec<Check> {
    let rust = output("rustc", &["--version"]).await;
    let compiler = Check::new(rust.is_some(), rust.as_deref().unwrap_or("rustc").trim(), "https://rustup.rs");
    let processor = output("uname", &["-m"]).await;
    let mut checks = vec![compiler, compiled_for(processor.as_deref().unwrap_or_default().trim())];
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    checks.extend(windows_drive(&kernel, &paths::home()));
    checks.extend([port(), disk().await, memory(), open_files().await]);
    checks.push(curl(output("curl", &["--version"]).await.as_deref()));
    for (program, in_debian, in_brew) in [("psql", "postgresql-client", "libpq"), ("jq", "jq", "jq")] {
        let is_there = output(program, &["--version"]).await.is_some();
        let fix = format!("`apt-get install -y {in_debian}` or `brew install {in_brew}`");
        checks.push(Check::new(is_there, format!("{program}, for the labs"), fix));
    }
    checks
}

/// An engine for another processor emulates it: everything works, several times slower.
pub(super) async fn engine_architecture() -> Option<Check> {
    let engine = testbed::engine_architecture().await.ok()?;
    Some(Check::new(
        same_processor(&engine, consts::ARCH),
        format!("containers for {engine} on {}", consts::ARCH),
        "use an engine and images of this machine's own architecture: emulation is several times slower",
    ))
}

/// A toolchain for another processor, for example an Intel one on an ARM Mac, builds and runs under emulation.
fn compiled_for(processor: &str) -> Check {
    Check::new(
        processor.is_empty() || same_processor(processor, consts::ARCH),
        format!("built for {} {}, on {processor}", consts::OS, consts::ARCH),
        "install Rust for this processor (https://rustup.rs, from a terminal that is not emulated)",
    )
}

/// Whether two names mean the same kind of processor: Docker, the kernel and Rust have different names.
fn same_processor(one: &str, other: &str) -> bool {
    let known = |name: &str| match name {
        "amd64" | "x86_64" => "x86_64".to_owned(),
        "arm64" | "aarch64" => "aarch64".to_owned(),
        name => name.to_owned(),
    };
    known(one) == known(other)
}

/// In WSL, a checkout on a Windows drive is read through a file server: a build takes many times as long, and file modes
/// are not kept.
fn windows_drive(kernel: &str, home: &Path) -> Option<Check> {
    if !kernel.to_lowercase().contains("microsoft") {
        return None;
    }
    let on_windows = home.starts_with("/mnt");
    Some(Check::new(
        !on_windows,
        if on_windows { "WSL, on a Windows drive" } else { "WSL, on its own file system" },
        "clone the repository below the Linux home directory (`cd ~`), not below /mnt/c",
    ))
}

fn port() -> Check {
    let in_use = "port 8080 is in use: orders gets another port";
    // Always ok: another port is used if this one is not free.
    Check::new(true, if testbed::is_free(8080) { "port 8080 is free" } else { in_use }, "")
}

async fn disk() -> Check {
    let dir = paths::home();
    let dir = dir.ancestors().find(|dir| dir.exists()).unwrap_or(&dir).display().to_string();
    let disk = output("df", &["-Pk", &dir]).await;
    let kib = disk.and_then(|text| text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok());
    let fix = "delete files (`cargo clean`, `docker system prune`)";
    amount("disk space", kib.map(|kib| kib * 1024), DISK_NEEDED, fix)
}

fn memory() -> Check {
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let kib = memory.and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let fix = "stop other programs; in WSL, raise `memory` in .wslconfig";
    amount("free memory", kib.map(|kib| kib * 1024), MEMORY_NEEDED, fix)
}

/// macOS allows 256 by default.
async fn open_files() -> Check {
    let files = output("sh", &["-c", "ulimit -n"]).await;
    let files = files.and_then(|text| match text.trim() {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Check::new(
        files.is_none_or(|files| files >= OPEN_FILES_NEEDED),
        files.map_or("open files: unknown".to_owned(), |files| format!("open files per process: {files}")),
        format!("ulimit -n {OPEN_FILES_NEEDED}"),
    )
}

/// `version` is what `curl --version` prints: `curl 7.81.0 (x86_64-pc-linux-gnu) …`.
fn curl(version: Option<&str>) -> Check {
    let number = version.and_then(|text| text.split_whitespace().nth(1));
    let parsed = number.and_then(|number| {
        let mut parts = number.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    let (major, minor) = CURL_NEEDED;
    Check::new(
        parsed.is_some_and(|found| found >= CURL_NEEDED),
        format!("curl {} ({major}.{minor} needed for `--json`)", number.unwrap_or("is not installed")),
        "use `cargo demo order`, or `curl -H 'Content-Type: application/json' -d` instead of `--json`",
    )
}

/// Compares an amount with what is needed. An unknown amount passes, and is printed as unknown.
fn amount(what: &str, bytes: Option<u64>, needed: u64, fix: &str) -> Check {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let have = bytes.map_or("unknown".to_owned(), gib);
    let what = format!("{what}: {have} ({} needed)", gib(needed));
    Check::new(bytes.is_none_or(|bytes| bytes >= needed), what, fix)
}

async fn output(program: &str, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(ANSWER_DEADLINE, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curl_is_compared_by_its_numbers() {
        assert!(curl(Some("curl 7.88.1 (x86_64-pc-linux-gnu) libcurl/7.88.1")).ok);
        assert!(curl(Some("curl 8.0.0 (aarch64-apple-darwin) libcurl/8.0.0")).ok);
        assert!(!curl(Some("curl 7.81.0 (x86_64-pc-linux-gnu) libcurl/7.81.0")).ok);
        assert!(!curl(None).ok);
    }

    #[test]
    fn processors_have_several_names() {
        assert!(same_processor("arm64", "aarch64") && same_processor("amd64", "x86_64"));
        assert!(!same_processor("amd64", "aarch64"));
    }

    #[test]
    fn only_wsl_is_told_where_to_clone() {
        let wsl = "5.15.167.4-microsoft-standard-WSL2";
        let ok = |kernel, home| windows_drive(kernel, Path::new(home)).map(|check| check.ok);
        assert_eq!(ok(wsl, "/mnt/c/outbox/target/demo"), Some(false));
        assert_eq!(ok(wsl, "/home/a/outbox/target/demo"), Some(true));
        assert_eq!(ok("6.1.0-18-amd64", "/mnt/disk/outbox"), None);
    }
}
