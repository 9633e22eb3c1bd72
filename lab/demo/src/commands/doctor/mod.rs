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
    checks.extend(machine::engine_architecture().await);
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
