//! `cargo demo doctor`: what this machine has, and what is missing, with the command that installs it.

use std::process::Stdio;

use anyhow::Result;
use serde::Serialize;
use testbed::IMAGES;
use tokio::process::Command;

use crate::choice::compose_version;
use crate::paths;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// For the servers, the services and their data. A build needs more.
const MEMORY_NEEDED: u64 = 1 << 30;
/// For a release build with its dependencies, and some data.
const DISK_NEEDED: u64 = 4 << 30;
/// For the sockets of the load, of the services and of the servers.
const OPEN_FILES_NEEDED: u64 = 1_024;

#[derive(Serialize)]
struct Check {
    ok: bool,
    what: String,
    /// What to do if it is not ok.
    fix: String,
}

/// Returns `Held` if the system can run in at least one way.
pub(crate) async fn run(terminal: &Terminal) -> Result<Verdict> {
    let docker = docker().await;
    let local = local();
    let machine = machine().await;
    for (title, checks) in [("Docker", &docker), ("without Docker", &local), ("this machine", &machine)] {
        terminal.print(format!("{title}:"));
        for check in checks {
            terminal.print(format!("  {} {}", if check.ok { "ok     " } else { "missing" }, check.what));
            if !check.ok {
                terminal.print(format!("          {}", check.fix));
            }
        }
    }
    let all = |checks: &[Check]| checks.iter().all(|check| check.ok);
    let ready = (all(&docker), all(&local));
    terminal.print("");
    terminal.print(match ready {
        (true, _) => "Ready: `cargo demo` runs everything in containers (`--with local` runs it without).",
        (false, true) => "Ready: `cargo demo` runs everything from this machine's binaries.",
        (false, false) if testbed::can_install().is_ok() => {
            "Ready: `cargo demo` installs the missing servers with apt-get first (`--no-install` prevents this)."
        }
        (false, false) => "Not ready: the system needs Docker or local servers; what is missing is above.",
    });
    terminal.document(&serde_json::json!({ "docker": docker, "local": local, "machine": machine }))?;
    let possible = ready.0 || ready.1 || testbed::can_install().is_ok();
    Ok(if possible { Verdict::Held } else { Verdict::Inconclusive })
}

async fn docker() -> Vec<Check> {
    let engine = testbed::engine_version().await;
    let mut checks = vec![Check {
        ok: engine.is_ok(),
        what: match &engine {
            Ok(version) => format!("container engine {version}"),
            Err(reason) => format!("no container engine answers: {reason:#}"),
        },
        fix: "https://docs.docker.com/engine/install/ (or `apt-get install -y docker.io docker-compose-v2`)"
            .to_owned(),
    }];
    if engine.is_err() {
        return checks;
    }
    let compose = compose_version().await;
    checks.push(Check {
        ok: compose.is_ok(),
        what: compose.map_or("no docker compose".to_owned(), |version| format!("docker compose {version}")),
        fix: "https://docs.docker.com/compose/install/".to_owned(),
    });
    for image in IMAGES {
        let ok = testbed::image_is_present(image).await;
        checks.push(Check { ok, what: format!("image {image}"), fix: format!("docker pull {image}") });
    }
    checks
}

fn local() -> Vec<Check> {
    [("PostgreSQL", testbed::find_postgres()), ("RabbitMQ", testbed::find_rabbitmq())]
        .into_iter()
        .map(|(name, found)| match found {
            Ok(path) => Check { ok: true, what: format!("{name}: {}", path.display()), fix: String::new() },
            Err(missing) => Check { ok: false, what: name.to_owned(), fix: format!("{missing:#}") },
        })
        .collect()
}

async fn machine() -> Vec<Check> {
    let rust = output("rustc", &["--version"]).await;
    let compiler = Check {
        ok: rust.is_some(),
        what: rust.unwrap_or_else(|| "rustc".to_owned()).trim().to_owned(),
        fix: "https://rustup.rs".to_owned(),
    };
    let port = testbed::is_free(8080);
    let port = Check {
        // Always ok: another port is used if this one is not free.
        ok: true,
        what: if port { "port 8080 is free" } else { "port 8080 is in use: orders gets another port" }
            .to_owned(),
        fix: String::new(),
    };
    let dir = paths::home();
    let dir = dir.ancestors().find(|dir| dir.exists()).unwrap_or(&dir).display().to_string();
    let disk = output("df", &["-Pk", &dir]).await;
    let disk = disk.and_then(|text| text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok());
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let memory = memory.and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let files = output("sh", &["-c", "ulimit -n"]).await;
    let files = files.and_then(|text| match text.trim() {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    vec![
        compiler,
        port,
        amount(
            "disk space",
            disk.map(|kib| kib * 1024),
            DISK_NEEDED,
            "delete files (`cargo clean`, `docker system prune`)",
        ),
        amount("free memory", memory.map(|kib| kib * 1024), MEMORY_NEEDED, "stop other programs"),
        Check {
            ok: files.is_none_or(|files| files >= OPEN_FILES_NEEDED),
            what: files
                .map_or("open files: unknown".to_owned(), |files| format!("open files per process: {files}")),
            fix: format!("ulimit -n {OPEN_FILES_NEEDED}"),
        },
    ]
}

/// Compares an amount with what is needed. An unknown amount passes, and is printed as unknown.
fn amount(what: &str, bytes: Option<u64>, needed: u64, fix: &str) -> Check {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let have = bytes.map_or("unknown".to_owned(), gib);
    let what = format!("{what}: {have} ({} needed)", gib(needed));
    Check { ok: bytes.is_none_or(|bytes| bytes >= needed), what, fix: fix.to_owned() }
}

async fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().await.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
