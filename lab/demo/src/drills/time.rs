//! Clocks that are wrong, and limits that pass.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::at_end::no_time_outs;
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::{Felt, Figure::Metric, Limit::Count};
use crate::fault::Fault;
use crate::lab::Setup;
use crate::own_system::OwnSystem;
use crate::part::BROKER;

pub(super) static DRILLS: [Drill; 2] = [
    Drill {
        name: "clocks-wrong",
        teaches: "Decisions about time are made by one clock, the database's. The others only write logs.",
        question: "Inventory's clock is an hour ahead, billing's an hour behind. Which orders time out, which retries \
                   are late?",
        claim: "With clocks that are wrong by an hour, orders end as usual, in order, and nothing times out.",
        system: Subject::Own(|| OwnSystem {
            clocks: &[("inventory", "+1h"), ("billing", "-1h")],
            ..OwnSystem::default()
        }),
        steps: Some(|run| Box::pin(read_clocks(run))),
        at_end: &[no_time_outs],
        ..ROW
    },
    Drill {
        name: "outage-beyond-the-limit",
        teaches: "A limit counts the time in which an answer was possible. While the question cannot be delivered, it \
                  must not run out.",
        question: "Orders wait ten seconds for their answers, and RabbitMQ is away for twenty. Which orders are \
                   cancelled?",
        claim: "An outage of the broker that is longer than the answer limit cancels no order: what was never asked, \
                and what is answered and waits, does not time out.",
        outage: Duration::from_secs(20),
        system: Subject::Own(|| Setup::default().with("ORDERS_ANSWER_WITHIN", "10s").into()),
        faults: &[Fault::Kill(BROKER)],
        felt: &[
            Felt::Accepted,
            Felt::More(
                Count(12.0),
                Metric("orders", "orders_oldest_open_seconds"),
                "the oldest order has waited for {} s",
            ),
        ],
        at_end: &[no_time_outs],
        ..ROW
    },
];

const ROW: Drill = Drill { group: Group::Time, ..Drill::ROW };

async fn read_clocks(run: &DrillRun<'_>) -> Result<()> {
    run.accepted_meanwhile().await;
    for service in ["inventory", "billing"] {
        let log = run.system.own()?.processes.log(service)?;
        let line: Value = serde_json::from_str(log.lines().next_back().context("an empty log")?)?;
        let time = line["timestamp"].as_str().context("a line without a time")?;
        let error =
            format!("select round(extract(epoch from timestamptz '{time}' - clock_timestamp()))::text");
        let error: i64 = run.system.number(&error).await?;
        run.injected(
            format!("the last line of {service}'s log is dated {error} s from now"),
            error.abs() > 1_800,
        );
    }
    Ok(())
}
