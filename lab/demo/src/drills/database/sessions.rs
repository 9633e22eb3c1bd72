//! Sessions that the server ends, and the answer to a commit that gets lost.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fault_proxy::{Direction, Effect, Fault};
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::http;
use crate::own_system::database_route;

pub(in crate::drills) const TERMINATED: Drill = Drill {
    name: "sessions-terminated",
    group: Group::Database,
    teaches: "Connections of a pool end at any time. Each use has to expect it.",
    question: "Every session of every service is terminated, again and again. Who needs a restart?",
    claim: "Terminated sessions are opened again by themselves. What was acknowledged is there, once.",
    outage: Duration::from_secs(2),
    system: Subject::Running,
    run: |run| Box::pin(terminate(run)),
};

pub(in crate::drills) const COMMIT_ANSWER_LOST: Drill = Drill {
    name: "commit-answer-lost",
    group: Group::Database,
    teaches: "A connection that breaks during a commit leaves no way to know its outcome. An idempotency key makes the \
              retry safe.",
    question: "The commit happened, and its answer was lost. The client gets an error and tries again: one order or two?",
    claim: "A client that retries with its Idempotency-Key gets the first answer, and there is one order for each key.",
    outage: Duration::ZERO,
    system: Subject::Proxied,
    run: |run| Box::pin(lose_answers(run)),
};

/// How often all sessions are terminated.
const TIMES: usize = 5;
/// How many clients lose the answer to their commit.
const ORDERS: usize = 20;
/// How often a client retries.
const RETRIES: usize = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(200);

async fn terminate(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let mut ended = 0;
    for _ in 0..TIMES {
        let sessions = "select count(*)::text from pg_stat_activity
                        where usename in ('orders', 'inventory', 'billing', 'provider')";
        ended += run.system.read(sessions).await?.trim().parse::<u64>()?;
        run.system.terminate_sessions().await?;
        run.phase("terminate", "terminated all sessions of the services");
        sleep(run.outage).await;
    }
    let summary = run.end(load).await?;
    let fact = Fact { what: format!("{ended} sessions were terminated"), observed: ended > 20 };
    run.report(vec![fact], summary, Refusals::AreExpected).await
}

/// The key is a parameter of the one statement that writes an order. The proxy resets the connection once it has
/// forwarded that: the server commits, and its answer goes nowhere.
async fn lose_answers(run: &DrillRun<'_>) -> Result<Report> {
    let (load, route) = (run.steady().await, database_route("orders"));
    let (customer, client) = (Uuid::new_v4(), http::client()?);
    let order = json!({ "customerId": customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    let resets_before = run.proxies()?.stats(&route).await?.resets;
    let (mut errors, mut replayed) = (0, 0);
    run.phase(
        "outage",
        format!("{ORDERS} clients lose the answer to their commit, and retry with their key"),
    );
    for _ in 0..ORDERS {
        let key = format!("drill-{}", Uuid::new_v4());
        let effect = Effect::ResetOnPattern { pattern: key.clone().into_bytes(), forward: true };
        let fault = Fault::new(effect, Direction::TowardUpstream, Duration::from_secs(30)).times(1);
        run.proxies()?.replace(&route, fault).await?;
        let mut answered = false;
        for _ in 0..RETRIES {
            let request = client.post(format!("{}/orders", run.system.orders_url()));
            let answer = request.header("Idempotency-Key", &key).json(&order).send().await;
            if let Ok(answer) = answer
                && answer.status() == 201
            {
                replayed += usize::from(answer.headers().contains_key("Idempotent-Replayed"));
                let order: Value = answer.json().await?;
                run.acknowledge(order["id"].as_str().context("201 without an id")?.parse()?);
                answered = true;
                break;
            }
            errors += 1;
            sleep(RETRY_PAUSE).await;
        }
        ensure!(answered, "an order was refused {RETRIES} times");
        run.proxies()?.clear(&route).await?;
    }
    let resets = run.proxies()?.stats(&route).await?.resets - resets_before;
    let exist = format!("select count(*)::text from orders.orders where customer_id = '{customer}'");
    let exist: usize = run.system.read(&exist).await?.trim().parse()?;
    let summary = run.end(load).await?;
    let facts = vec![
        Fact {
            what: format!(
                "{resets} connections were reset after the commit was sent; clients saw {errors} errors"
            ),
            observed: resets >= ORDERS as u64 && errors >= ORDERS,
        },
        Fact {
            what: format!("{replayed} retries got the answer of an order that existed already"),
            observed: replayed > 0,
        },
    ];
    let mut report = run.report(facts, summary, Refusals::BreakTheClaim).await?;
    if exist != ORDERS {
        report.refute(format!("{exist} orders exist for {ORDERS} keys"));
    }
    Ok(report)
}
