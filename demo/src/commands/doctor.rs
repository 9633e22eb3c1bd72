//! `cargo demo doctor`: what this machine has and lacks, each with the command that mends it.

use std::process::Stdio;

use anyhow::Result;
use serde::Serialize;
use testbed::IMAGES;
use tokio::process::Command;

use crate::choice::compose_version;
use crate::paths;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// Servers, services and their data; the build's own needs come on top.
const MEMORY_NEEDED: u64 = 1 << 30;
/// A release build with its dependencies, and some data.
const DISK_NEEDED: u64 = 4 << 30;
/// Sockets of the load, of three services, of two servers.
const FILES_NEEDED: u64 = 1_024;

#[derive(Serialize)]
struct Finding {
    ok: bool,
    what: String,
    /// What helps, if it is not.
    mend: String,
}

/// Held if at least one way to run everything is there.
pub(crate) async fn run(terminal: &Terminal) -> Result<Verdict> {
    let docker = docker().await;
    let local = local();
    let machine = machine().await;
    for (title, findings) in [("Docker", &docker), ("without Docker", &local), ("this machine", &machine)] {
        terminal.say(format!("{title}:"));
        for finding in findings {
            terminal.say(format!("  {} {}", if finding.ok { "ok     " } else { "lacking" }, finding.what));
            if !finding.ok {
                terminal.say(format!("          {}", finding.mend));
            }
        }
    }
    let all = |findings: &[Finding]| findings.iter().all(|finding| finding.ok);
    let ready = (all(&docker), all(&local));
    terminal.say("");
    terminal.say(match ready {
        (true, _) => "Ready: `cargo demo` runs everything in containers (`--with local`: without).",
        (false, true) => "Ready: `cargo demo` runs everything from this machine's binaries.",
        (false, false) if testbed::can_install().is_ok() => {
            "Ready: `cargo demo` installs the missing servers with apt-get first (`--no-install` refuses)."
        }
        (false, false) => "Not ready: one of the two ways needs what is said above.",
    });
    terminal.document(&serde_json::json!({ "docker": docker, "local": local, "machine": machine }))?;
    let possible = ready.0 || ready.1 || testbed::can_install().is_ok();
    Ok(if possible { Verdict::Held } else { Verdict::Inconclusive })
}

async fn docker() -> Vec<Finding> {
    let engine = testbed::engine_version().await;
    let mut findings = vec![Finding {
        ok: engine.is_ok(),
        what: match &engine {
            Ok(version) => format!("container engine {version}"),
            Err(reason) => format!("no container engine answers: {reason:#}"),
        },
        mend: "https://docs.docker.com/engine/install/ (or `apt-get install -y docker.io docker-compose-v2`)"
            .to_owned(),
    }];
    if engine.is_err() {
        return findings;
    }
    let compose = compose_version().await;
    findings.push(Finding {
        ok: compose.is_ok(),
        what: compose.map_or("no docker compose".to_owned(), |version| format!("docker compose {version}")),
        mend: "https://docs.docker.com/compose/install/".to_owned(),
    });
    for image in IMAGES {
        let ok = testbed::image_is_present(image).await;
        findings.push(Finding { ok, what: format!("image {image}"), mend: format!("docker pull {image}") });
    }
    findings
}

fn local() -> Vec<Finding> {
    [("PostgreSQL", testbed::find_postgres()), ("RabbitMQ", testbed::find_rabbitmq())]
        .into_iter()
        .map(|(name, found)| match found {
            Ok(path) => {
                Finding { ok: true, what: format!("{name}: {}", path.display()), mend: String::new() }
            }
            Err(missing) => Finding { ok: false, what: name.to_owned(), mend: format!("{missing:#}") },
        })
        .collect()
}

async fn machine() -> Vec<Finding> {
    let rust = output("rustc", &["--version"]).await;
    let compiler = Finding {
        ok: rust.is_some(),
        what: rust.unwrap_or_else(|| "rustc".to_owned()).trim().to_owned(),
        mend: "https://rustup.rs".to_owned(),
    };
    let port = testbed::is_free(8080);
    let port = Finding {
        // Not a lack: another one is taken.
        ok: true,
        what: if port { "port 8080 is free" } else { "port 8080 is taken: orders gets another one" }
            .to_owned(),
        mend: String::new(),
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
            "free some (`cargo clean`, `docker system prune`)",
        ),
        amount("free memory", memory.map(|kib| kib * 1024), MEMORY_NEEDED, "end something else"),
        Finding {
            ok: files.is_none_or(|files| files >= FILES_NEEDED),
            what: files
                .map_or("open files: unknown".to_owned(), |files| format!("open files per process: {files}")),
            mend: format!("ulimit -n {FILES_NEEDED}"),
        },
    ]
}

/// Unknown is said to be unknown, and is not held against the machine.
fn amount(what: &str, bytes: Option<u64>, needed: u64, mend: &str) -> Finding {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let have = bytes.map_or("unknown".to_owned(), gib);
    let what = format!("{what}: {have} ({} needed)", gib(needed));
    Finding { ok: bytes.is_none_or(|bytes| bytes >= needed), what, mend: mend.to_owned() }
}

async fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().await.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
