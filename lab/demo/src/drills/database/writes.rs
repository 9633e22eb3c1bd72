//! A database that answers reads: its disk is full, or its synchronous standby is gone.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::http;
use crate::own_system::OwnSystem;
use crate::sql_faults::{ACCEPT_MARKS, REFUSE_MARKS, set_standby};

pub(in crate::drills) const MARKS: Drill = Drill {
    name: "marks-fail",
    group: Group::Database,
    teaches: "What cannot be recorded as done will be done again. Before the next attempt, try whether it can be recorded.",
    question: "RabbitMQ confirms, and the database refuses every mark \"published\". How often is each event sent?",
    claim: "While no event can be marked as published, orders are accepted, and the relays send at most two seconds' worth of \
            copies. Then everything arrives once.",
    outage: Duration::from_secs(10),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(fail_marks(run)),
};

pub(in crate::drills) const COMMITS: Drill = Drill {
    name: "commits-hang",
    group: Group::Database,
    teaches: "A database that answers reads may still accept no write. Health has to ask for what the service needs.",
    question: "The only synchronous standby vanishes: reads are answered, and no commit returns. What do clients and health say?",
    claim: "While commits wait for a standby, no order is acknowledged, and `/readyz` answers 503 after the first. Then \
            everything ends, and no promise is broken.",
    outage: Duration::from_secs(8),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(hang_commits(run)),
};

async fn fail_marks(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    run.system.execute_as("orders", REFUSE_MARKS).await?;
    run.phase("outage", "no event of the order service can be marked as published");
    let waiting = run.pending_grow(2 * run.rate).await;
    let accepted = run.accepted_meanwhile().await;
    run.system.execute_as("orders", ACCEPT_MARKS).await?;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![waiting, accepted], summary, Refusals::BreakTheClaim).await?;
    let copies = report.duplicates_dropped.inventory;
    report.claim(Fact {
        what: format!(
            "inventory has dropped {} copies, of at most {}",
            copies.unwrap_or_default(),
            2 * run.rate
        ),
        observed: copies.is_some_and(|copies| copies <= u64::from(2 * run.rate)),
    });
    Ok(report)
}

async fn hang_commits(run: &DrillRun<'_>) -> Result<Report> {
    run.steady().await.stop().await?;
    run.settled().await?;
    set_standby(run.system, "= 'ghost'").await?;
    run.phase("outage", "every commit waits for a standby that does not exist; one order is sent");
    let from = SystemTime::now();
    let order = json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
    let order = http::place(http::order_request(run.system.orders_url(), &order)?);
    // Under load all connections would be in use, and health would notice that.
    let ready = format!("{}/readyz", run.system.orders_url());
    let unavailable = run.felt("/readyz answers 503", async || {
        let status = http::client()?.get(&ready).send().await?.status();
        Ok((status == 503).then(|| "/readyz answers 503 while one commit waits".to_owned()))
    });
    let (order, unavailable) = tokio::join!(order, unavailable);
    let load = run.load_until_stopped();
    sleep(run.outage).await;
    let acknowledged = run.accepted_between(from, SystemTime::now()) + u64::from(order.is_ok());
    set_standby(run.system, "to default").await?;
    let summary = run.end(load).await?;
    let refused = summary.refused_in_all();
    let refused = Fact { what: format!("{refused} orders were refused"), observed: refused > 0 };
    let mut report = run.report(vec![refused], summary, Refusals::AreExpected).await?;
    report.claim(unavailable);
    report.claim(Fact {
        what: format!("{acknowledged} orders were acknowledged meanwhile"),
        observed: acknowledged == 0,
    });
    Ok(report)
}
