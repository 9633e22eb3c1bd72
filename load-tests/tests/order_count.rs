//! What one order costs, and what the system sends at rest, as `load-tests count` counts it: no change may add to it unseen.

use std::process::Command;

use serde_json::Value;

#[test]
fn an_order_costs_29_messages_and_12_transactions_at_most() {
    // The counts of a smoke run are right. Only times mean nothing in a build without optimisation.
    let count =
        Command::new(env!("CARGO_BIN_EXE_load-tests")).args(["count", "--smoke", "--json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&count.stderr);
    assert!(count.status.success(), "{errors}");
    let reports: Value = serde_json::from_slice(&count.stdout).unwrap();
    let notes = reports[0]["notes"].as_array().unwrap();
    let notes = notes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n");
    let figure = |name: &str| {
        let figures = reports[0]["figures"].as_array().unwrap();
        let figure = figures.iter().find(|figure| figure["name"] == name);
        figure.unwrap_or_else(|| panic!("no figure has the name {name}"))["median"].as_f64().unwrap()
    };
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
        let measured = figure(name);
        assert!((least..=most).contains(&measured), "{name}: {measured}, not {least} to {most}:\n{notes}");
    }
}
