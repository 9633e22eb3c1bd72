//! What one order costs, and what the system sends at rest, as `load-tests count` counts it: no change may add to it unseen.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use std::{process::Command, sync::LazyLock};

use serde_json::Value;

/// The counts with one instance of each service.
static ONE: LazyLock<Count> = LazyLock::new(|| Count::of(1));

struct Count(Value);

impl Count {
    /// Counts with so many instances of each service. The counts of a smoke run are right. Only times mean nothing in a build
    /// without optimisation.
    fn of(instances: u8) -> Self {
        let mut count = Command::new(env!("CARGO_BIN_EXE_load-tests"));
        count.args(["count", "--smoke", "--json", "--instances", &instances.to_string()]);
        let count = count.output().unwrap();
        let errors = String::from_utf8_lossy(&count.stderr);
        assert!(count.status.success(), "{errors}");
        let reports: Value = serde_json::from_slice(&count.stdout).unwrap();
        Self(reports[0].clone())
    }

    fn figure(&self, name: &str) -> f64 {
        let figures = self.0["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["name"] == name);
        figure.unwrap_or_else(|| panic!("no figure has the name {name}"))["median"].as_f64().unwrap()
    }

    /// Every kind of message.
    fn notes(&self) -> String {
        let notes = self.0["notes"].as_array().unwrap();
        notes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn an_order_costs_29_messages_and_12_transactions_at_most() {
    for (name, least, most) in [
        // Four events, each published and confirmed once, and one charge, which a slow provider may be sent twice: what an order
        // is.
        ("an order: basic.publish", 4.0, 4.0),
        ("an order: confirms of the broker", 3.0, 4.0),
        ("an order: calls to the payment provider", 1.0, 1.1),
        // Four deliveries. One acknowledgement may be for several; one may come after its order is confirmed.
        ("an order: basic.ack", 1.0, 4.1),
        // Each message wakes a process on both sides, which is most of what an order costs in a calm system. Measured: 28,
        // and 4 fewer when both answers to an order are applied together. A slow machine has fewer, not more. One is added
        // for the timers, whose messages are subtracted by their average.
        ("an order: messages to PostgreSQL", 18.0, 29.0),
        // Measured: 11, each with a flush of the log unless it only reads. One is added as above.
        ("an order: transactions", 7.0, 12.0),
        // A system that does nothing should leave its servers alone: they serve others too, and wake for each. Measured: 12,
        // of which most are every second or every two; two are added for what falls on both ends of ten seconds.
        ("a second at rest: transactions", 6.0, 14.0),
    ] {
        let measured = ONE.figure(name);
        let notes = ONE.notes();
        assert!((least..=most).contains(&measured), "{name}: {measured}, not {least} to {most}:\n{notes}");
    }
}

/// Each instance polls, counts its gauges and may publish what others have written. If a commit woke all of them, each order would
/// cost more with each instance; if they woke each other, the cost would grow with the square of their number.
#[test]
fn with_four_instances_the_rest_costs_four_times_as_much_at_most_and_an_order_the_same() {
    let (one, four) = (&ONE, Count::of(4));
    for (name, times, added) in [
        ("a second at rest: messages to PostgreSQL", 4.0, 0.0),
        ("a second at rest: transactions", 4.0, 0.0),
        // Added are the timers of four instances, whose messages are subtracted by their average.
        ("an order: messages to PostgreSQL", 1.0, 4.0),
        ("an order: transactions", 1.0, 4.0),
        // The instance that writes an event publishes it.
        ("an order: notifications from PostgreSQL", 0.0, 0.0),
        ("an order: basic.publish", 1.0, 0.0),
        ("an order: calls to the payment provider", 1.0, 0.1),
    ] {
        let (most, measured) = (one.figure(name) * times + added, four.figure(name));
        let notes = four.notes();
        assert!(measured <= most, "{name}: {measured} with four instances, more than {most}:\n{notes}");
    }
}
