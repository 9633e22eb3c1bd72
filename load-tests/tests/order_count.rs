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

/// Sums have timers in them, which a slow machine's orders meet more of: their limits are a quarter above what was measured on a
/// calm one. The `regular` figures leave out, kind by kind, what is not in three of four orders or seconds. So they are whole
/// numbers on every machine, and their limits are what was measured: one message more for each order is one too many, and so is
/// one statement more in each second.
#[test]
fn an_order_costs_28_messages_and_11_transactions_at_most() {
    for (name, least, most) in [
        // Four events, each published and confirmed once, and one charge, which a slow provider may be sent twice: what an order
        // is. Measured: 4, 4 and 1. One more for each order is above the limit.
        ("an order: basic.publish", 4.0, 4.9),
        ("an order: confirms of the broker", 3.0, 4.9),
        ("an order: calls to the payment provider", 1.0, 1.5),
        // Four deliveries. One acknowledgement may be for several; one may come after its order is confirmed. Measured: 4.
        ("an order: basic.ack", 1.0, 4.9),
        // Each message wakes a process on both sides, which is most of what an order costs in a calm system. Measured: 28,
        // and 4 fewer when both answers to an order are applied together.
        ("an order: regular messages", 18.0, 28.0),
        ("an order: messages to PostgreSQL", 18.0, 35.0),
        // Measured: 11, each with a flush of the log unless it only reads.
        ("an order: regular transactions", 7.0, 11.0),
        ("an order: transactions", 7.0, 14.0),
        // Measured: 0, and 1.4 where forty processes waited for two cores. A useless wake-up of each service by each order is 3.
        ("an order: scans that find nothing", 0.0, 2.0),
        // A system that does nothing should leave its servers alone: they serve others too, and wake for each. Measured: 7 and
        // 4, which are the polls of three relays and the count of open orders; 15 and 12 with what comes less often.
        ("a second at rest: regular messages", 4.0, 7.0),
        ("a second at rest: regular transactions", 2.0, 4.0),
        ("a second at rest: messages to PostgreSQL", 7.0, 19.0),
        ("a second at rest: transactions", 6.0, 15.0),
    ] {
        let measured = ONE.figure(name);
        let notes = ONE.notes();
        assert!((least..=most).contains(&measured), "{name}: {measured}, not {least} to {most}:\n{notes}");
    }
}

/// Each instance polls, counts its gauges and may publish what others have written. If a commit woke all of them, each order would
/// cost more with each instance; if they woke each other, the cost would grow with the square of their number.
#[test]
fn with_four_instances_the_rest_costs_four_times_as_much_and_an_order_the_same() {
    let (one, four) = (&ONE, Count::of(4));
    for (name, times, added) in [
        // Measured: 3.9 to 4.1 times. If instances woke each other, it would be 16 times.
        ("a second at rest: messages to PostgreSQL", 5.0, 0.0),
        ("a second at rest: transactions", 5.0, 0.0),
        // Measured: the same. If an event woke the relays of all instances, there would be 3 scans more for each of four events.
        // Added is a scan for each order.
        ("an order: messages to PostgreSQL", 1.25, 0.0),
        ("an order: transactions", 1.25, 0.0),
        ("an order: scans that find nothing", 1.0, 2.0),
        // The instance that writes an event publishes it. One more of each for an order is above the limit.
        ("an order: notifications from PostgreSQL", 0.0, 0.25),
        ("an order: basic.publish", 1.0, 0.9),
        ("an order: calls to the payment provider", 1.0, 0.5),
    ] {
        let (most, measured) = (one.figure(name) * times + added, four.figure(name));
        let notes = four.notes();
        assert!(measured <= most, "{name}: {measured} with four instances, more than {most}:\n{notes}");
    }
}
