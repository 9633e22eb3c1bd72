//! Who may depend on whom. The picture in `docs/architecture.md`, held by a test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// Each crate of this workspace, and the others of it (and the two protocols' clients) that it may use in its code.
const MAY_USE: [(&str, &[&str]); 17] = [
    // The ground: what is said. No I/O.
    ("events", &[]),
    // The places at which a drill may strike.
    ("faults", &[]),
    // The walls: SQL on one side, AMQP on the other, and no door between them. `runtime` for the operator's routes.
    ("outbox", &["events", "faults", "runtime", "sqlx"]),
    ("inbox", &["events", "faults", "runtime", "sqlx"]),
    ("broker", &["events", "faults", "lapin"]),
    // What every room stands on, and where its walls meet.
    ("runtime", &["sqlx"]),
    ("service", &["broker", "events", "inbox", "outbox", "runtime", "sqlx"]),
    // The rooms: never each other.
    ("orders", &["broker", "events", "faults", "inbox", "outbox", "runtime", "service", "sqlx"]),
    ("inventory", &["broker", "events", "faults", "inbox", "outbox", "runtime", "service", "sqlx"]),
    ("billing", &["broker", "events", "faults", "inbox", "outbox", "runtime", "service", "sqlx"]),
    // A guest: the consuming half of a room, and no way to publish. Nobody uses it.
    ("mailer", &["broker", "events", "inbox", "runtime", "service", "sqlx"]),
    // A company of its own. It knows nothing of events.
    ("provider", &["runtime", "sqlx"]),
    // One room with one thing in it done wrong, to be watched while it fails.
    ("variants", &["broker", "events", "orders", "outbox", "runtime", "service", "sqlx"]),
    // The visitors: they meet the system over HTTP, SQL and AMQP, so that a fault in it cannot hide itself in them.
    ("testbed", &["sqlx"]),
    // It puts the real relay and the real consumer logic into a world of its own: what they use, but no SQL and no AMQP.
    ("simulation", &["broker", "events", "outbox"]),
    ("load-tests", &["lapin", "sqlx", "testbed"]),
    ("demo", &["load-tests", "sqlx", "testbed"]),
];

#[test]
fn nobody_uses_what_is_not_theirs_to_use() {
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
            // What only tests use is free: they look behind the scenes.
            let in_code = dependency["kind"].is_null();
            let watched = allowed.contains_key(uses) || ["lapin", "sqlx"].contains(&uses);
            assert!(!in_code || !watched || may_use.contains(&uses), "{name} uses {uses}");
        }
    }
}
