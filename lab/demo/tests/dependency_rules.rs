//! Which crate may use which: the table of `docs/architecture.md`, checked against `cargo metadata`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// Crates from outside that only some may use.
const WATCHED: [&str; 4] = ["axum", "lapin", "sqlx", "utoipa"];

/// Each crate of this workspace, and those of the workspace and of [`WATCHED`] that its code may use.
const MAY_USE: [(&str, &str); 24] = [
    // Contracts and spans: no I/O, no HTTP.
    ("events", ""),
    // The relay, what confirms and deliveries mean, ports, crash points: no I/O.
    ("messaging", "events"),
    // Below the mechanisms, knows no event.
    ("database", "sqlx"),
    // Mechanisms: SQL on one side, AMQP on the other, never both; no HTTP, no admin API.
    ("outbox", "database events messaging sqlx"),
    ("inbox", "database events messaging sqlx"),
    ("rabbitmq", "events lapin messaging"),
    // The process: start and stop, HTTP, the admin API, logs, metrics and spans.
    ("service", "axum rabbitmq database events inbox messaging outbox sqlx utoipa"),
    // Services: never each other.
    ("orders", "axum rabbitmq database events inbox messaging outbox service sqlx utoipa"),
    ("inventory", "rabbitmq database events inbox messaging outbox service sqlx"),
    ("billing", "rabbitmq database events inbox messaging outbox service sqlx"),
    // An external consumer: the consuming half of a service. No crate uses it.
    ("mailer", "rabbitmq database events inbox messaging service sqlx"),
    // The pattern alone, to be pasted into other projects: no crate of this workspace.
    ("one-file", "axum lapin sqlx"),
    // The lab. No service uses any of these.
    // It knows the commands of the documentation only: no crate of this workspace.
    ("docs-runner", ""),
    ("payment-provider", "axum database service sqlx"),
    // The table of what can be left out on purpose, and how a publisher concludes without it.
    ("flaws", "messaging"),
    // Compositions of the product's parts, with one part replaced.
    (
        "flawed-services",
        "axum billing rabbitmq database events flaws inbox inventory messaging orders outbox outbox-relay service sqlx",
    ),
    // The relay alone, as one entrant of the judge.
    ("outbox-relay", "database messaging outbox rabbitmq sqlx"),
    // The real relay and the real consumer logic in memory: no SQL, no AMQP.
    ("simulation", "events flaws messaging"),
    // Receives spans as any trace store does: it knows their protocol, and none of the product's code.
    ("trace-store", "axum"),
    // These meet the system over HTTP, SQL and AMQP only, so that a fault in it cannot hide itself in them.
    ("fault-proxy", "axum"),
    ("testbed", "sqlx"),
    ("load-tests", "lapin sqlx testbed"),
    ("judge", "fault-proxy lapin sqlx testbed"),
    ("demo", "axum fault-proxy flaws judge load-tests messaging sqlx testbed trace-store"),
];

#[test]
fn each_crate_uses_only_what_its_layer_allows() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), allowed.len(), "a crate is missing from the table above");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let may_use = allowed.get(name).unwrap_or_else(|| panic!("{name} is not in the table above"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let uses = dependency["name"].as_str().unwrap();
            // Tests may use anything.
            let in_code = dependency["kind"].is_null();
            let watched = allowed.contains_key(uses) || WATCHED.contains(&uses);
            assert!(
                !in_code || !watched || may_use.split(' ').any(|other| other == uses),
                "{name} uses {uses}"
            );
        }
    }
}

/// The mechanisms can be used without an HTTP server, and the relay and the consumer without database and broker, also through
/// their dependencies.
#[test]
fn mechanisms_have_no_server_that_they_do_not_need_in_their_dependency_tree() {
    let http: &[&str] = &["axum", "hyper"];
    let all = ["axum", "hyper", "lapin", "sqlx"];
    for (package, without) in [("outbox", http), ("inbox", http), ("rabbitmq", http), ("messaging", &all)] {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges=normal", "--prefix=none", "--package", package])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8_lossy(&output.stdout);
        assert!(tree.starts_with(package), "{tree}");
        let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        assert!(!tree.lines().any(|line| without.contains(&&*name(line))), "{tree}");
    }
}
