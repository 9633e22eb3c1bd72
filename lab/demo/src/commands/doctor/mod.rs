//! `cargo demo doctor`: what this machine has, and what is missing, with the command that installs it.

mod machine;

use anyhow::Result;
use serde::Serialize;
use testbed::IMAGES;

use crate::Verdict;
use crate::choice::compose_version;
use crate::terminal::Terminal;

#[derive(Serialize)]
struct Check {
    ok: bool,
    what: String,
    /// What to do if it is not ok.
    fix: String,
}

impl Check {
    fn new(ok: bool, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { ok, what: what.into(), fix: fix.into() }
    }
}

/// Returns `Held` if the system can run in at least one way.
pub(crate) async fn run(terminal: &Terminal) -> Result<Verdict> {
    let docker = docker().await;
    let local = local();
    let machine = machine::checks().await;
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
    let (is_there, found) = match engine {
        Ok(version) => (true, format!("container engine {version}")),
        Err(reason) => (false, format!("no container engine answers: {reason:#}")),
    };
    let fix = "https://docs.docker.com/engine/install/ (or `apt-get install -y docker.io docker-compose-v2`)";
    let mut checks = vec![Check::new(is_there, found, fix)];
    if !is_there {
        return checks;
    }
    let compose = compose_version().await;
    let (is_there, found) = (compose.is_ok(), compose.map(|version| format!("docker compose {version}")));
    let found = found.unwrap_or("no docker compose".to_owned());
    checks.push(Check::new(is_there, found, "https://docs.docker.com/compose/install/"));
    checks.extend(machine::engine_architecture().await);
    for image in IMAGES {
        let is_there = testbed::image_is_present(image).await;
        checks.push(Check::new(is_there, format!("image {image}"), format!("docker pull {image}")));
    }
    checks
}

fn local() -> Vec<Check> {
    [("PostgreSQL", testbed::find_postgres()), ("RabbitMQ", testbed::find_rabbitmq())]
        .into_iter()
        .map(|(name, found)| match found {
            Ok(path) => Check::new(true, format!("{name}: {}", path.display()), ""),
            Err(missing) => Check::new(false, name, format!("{missing:#}")),
        })
        .collect()
}
