//! Clients that send the same order several times at once.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::http;

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "same-key-storm",
    group: Group::Client,
    teaches: "The key is a primary key in the order's own transaction. The database decides who was first.",
    question: "Twenty requests with one Idempotency-Key arrive at the same moment. How many orders, how many answers?",
    claim: "However many requests carry one key, there is one order, and each client that is answered gets its id.",
    outage: Duration::ZERO,
    system: Subject::Running,
    run: |run| Box::pin(send_together(run)),
};

const KEYS: usize = 50;
const CLIENTS: usize = 20;

async fn send_together(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let client = http::client()?;
    let url = format!("{}/orders", run.system.orders_url());
    let (customer, mut answered, mut others) = (Uuid::new_v4(), 0_usize, 0_usize);
    let order = json!({ "customerId": customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    run.phase("storm", format!("{CLIENTS} clients send the same order at once, with each of {KEYS} keys"));
    let mut different = vec![];
    for _ in 0..KEYS {
        let key = Uuid::new_v4().to_string();
        let requests =
            (0..CLIENTS).map(|_| client.post(&url).header("Idempotency-Key", &key).json(&order).send());
        let mut ids = BTreeSet::new();
        for answer in join_all(requests).await {
            match answer {
                Ok(answer) if answer.status() == 201 => {
                    let order: Value = answer.json().await?;
                    ids.insert(order["id"].as_str().context("201 without an id")?.parse::<Uuid>()?);
                    answered += 1;
                }
                // Such as 503 with Retry-After, while another request with the key holds its row.
                _ => others += 1,
            }
        }
        ids.iter().for_each(|id| run.acknowledge(*id));
        if ids.len() > 1 {
            different.push(key);
        }
    }
    let exist = format!("select count(*)::text from orders.orders where customer_id = '{customer}'");
    let exist: usize = run.system.read(&exist).await?.trim().parse()?;
    let summary = run.end(load).await?;
    let facts = vec![Fact {
        what: format!("{answered} requests were answered with 201, {others} otherwise; {exist} orders exist"),
        observed: answered > 2 * KEYS,
    }];
    let mut report = run.report(facts, summary, Refusals::BreakTheClaim).await?;
    if exist > KEYS || !different.is_empty() {
        report.refute(format!("{exist} orders exist for {KEYS} keys; different answers for {different:?}"));
    }
    Ok(report)
}
