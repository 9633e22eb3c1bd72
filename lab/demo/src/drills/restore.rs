//! A database is restored to an earlier moment: that of consumers, or all of it. What others have published since comes again;
//! what was promised since is gone.

use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::json;
use testbed::eventually;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::IN_FLIGHT;
use super::report::Refusals;
use super::service::start_all_again;
use crate::http;
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;
use crate::part::SERVICES;
use crate::set_aside::publish_since;

pub(super) static DRILLS: [Drill; 2] = [CONSUMERS_RESTORED, ALL_RESTORED];

const CONSUMERS_RESTORED: Drill = Drill {
    name: "consumer-restored",
    teaches: "A backup of a consumer is as good as the events that others keep. What it answers twice must have one id, and \
              each call to another company one key.",
    question: "Inventory and billing are restored to an older state, and their queues are empty. What is missing, and who is \
               charged twice when the events come again?",
    claim: "Once an operator has published again what was published since the backup, everything is applied once, although \
            inventory and billing have forgotten that they had applied it.",
    steps: Some(|run| Box::pin(restore_consumers(run))),
    cancels: false,
    ..ROW
};

const ALL_RESTORED: Drill = Drill {
    name: "restored-whole",
    teaches: "A restore takes back what was promised since. What other companies have done since stays done, and only their \
              records still tell of it.",
    question: "The whole database is restored to an earlier moment. Customers were charged since, for orders that do not exist \
               any more. Who knows that, and what do the other orders need?",
    claim: "Once an operator has followed docs/operations.md, every order from before that moment is there and applied once, \
            no customer has paid for a forgotten order, and the orders that were refunded since are cancelled.",
    refusals: Refusals::AreExpected,
    steps: Some(|run| Box::pin(restore_all(run))),
    ..ROW
};

const ROW: Drill = Drill {
    group: Group::Database,
    system: Subject::Own(|| OwnSystem { needs_processes: true, ..OwnSystem::default() }),
    ..Drill::ROW
};

const CONSUMERS: [&str; 2] = ["inventory", "billing"];

/// `outage` is the age of the backup.
async fn restore_consumers(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    // Who gets the last piece is decided again, maybe differently: nothing is left of what is scarce.
    let sold_out = "update stock set on_hand = reserved where sku = 'POT-003'";
    run.system.execute_as("inventory", sold_out).await?;
    let before_the_backup = run.started_at;
    let backup = own.databases.primary().back_up("shop", &CONSUMERS).await?;
    run.phase("backup", "`pg_dump` has copied the schemas of inventory and billing");
    sleep(run.outage).await;

    let stopped = Instant::now();
    for service in CONSUMERS {
        own.processes.terminate(service).await?;
    }
    own.databases.primary().restore("shop", &backup).await?;
    // They may hold a cancellation whose order is forgotten. All that is in them comes again.
    for service in CONSUMERS {
        run.system.broker_api()?.purge(&format!("{service}.events")).await?;
    }
    run.phase("restored", "inventory and billing were stopped and restored, and their queues emptied");
    effects_are_missing(run).await;

    let again = publish_again(run, before_the_backup).await?;
    // The provider may know calls that billing has forgotten.
    own.processes.set("BILLING_RESTORED", "true");
    for service in CONSUMERS {
        own.processes.start_again(service).await?;
    }
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    run.phase("recover", format!("published {again} events again, and started inventory and billing"));
    run.injected(format!("{again} events were published again"), again > 0);
    run.end().await?;
    run.settled().await?;
    run.recovered_in(stopped.elapsed());
    let twice = publish_again(run, before_the_backup).await?;
    run.phase("again", format!("an operator who is unsure has published {twice} events again"));
    run.injected("the command was given a second time", twice >= again);
    Ok(())
}

/// What is wrong before an operator has published again.
async fn effects_are_missing(run: &DrillRun<'_>) {
    run.seen_injected("effects of acknowledged orders are missing", async || {
        let found = run.system.reconcile(&run.ledger.acknowledged()?).await?;
        Ok(found.broken().map(|broken| format!("before the command: {broken}")))
    })
    .await;
}

/// What an operator does: `cargo demo failed replay --published --at orders --from …`.
async fn publish_again(run: &DrillRun<'_>, from: SystemTime) -> Result<usize> {
    publish_since(run.system, "orders", from).await.context("failed to publish events again")
}

/// How many customers cancel a confirmed order after the moment to which everything is restored.
const CANCELLED_SINCE: usize = 5;

/// The orders of charges that nobody has refunded, and that do not exist.
const FORGOTTEN_CHARGES: &str = "select coalesce(json_agg(json_build_object('charge', id, 'amount', amount - refunded)), '[]')::text
    from provider.charges
    where status = 'captured' and refunded < amount and not exists (select from orders.orders o where o.id = reference)";

/// The orders whose charge the provider has refunded, and that are not cancelled.
const FORGOTTEN_CANCELLATIONS: &str = "select coalesce(json_agg(distinct o.id), '[]')::text
    from provider.charges join orders.orders o on o.id = reference
    where refunded > 0 and o.status <> 'cancelled'";

#[derive(Deserialize)]
struct Charge {
    charge: Uuid,
    amount: i64,
}

/// `outage` is the time that is lost.
async fn restore_all(run: &DrillRun<'_>) -> Result<()> {
    let own = run.system.own()?;
    let database = own.databases.primary();
    run.stop_load().await?;
    database.archive().await?;
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    run.phase("backup", "`pg_basebackup` has copied the server's files, and its log is archived from now on");
    let before_the_backup = SystemTime::now();
    run.steady().await?;
    sleep(run.outage).await;
    let confirmed = "select coalesce(json_agg(id), '[]')::text from orders.orders where status = 'confirmed'";
    let confirmed: Vec<Uuid> = serde_json::from_str(&run.system.read(confirmed).await?)?;
    // What is on its way at that moment is in no backup.
    own.processes.pause("billing")?;
    sleep(IN_FLIGHT).await;
    let (moment, cancelled) = (SystemTime::now(), run.cancelled());
    sleep(IN_FLIGHT).await;
    own.processes.resume("billing")?;
    run.phase("moment", "everything will be restored to this moment; the load goes on");
    for order in confirmed.iter().take(CANCELLED_SINCE) {
        cancel(run, *order).await?;
    }
    sleep(run.outage).await;
    // Its queue is left with events of orders that will not exist.
    own.processes.terminate("billing").await?;
    sleep(IN_FLIGHT).await;
    let forgotten = run.forget_since(moment, cancelled).await?;
    run.injected(
        format!("{} orders were acknowledged since that moment", forgotten.len()),
        !forgotten.is_empty(),
    );
    // Those whose transaction had ended by that moment will exist.
    run.may_exist(forgotten.len() as u64);

    for service in ["orders", "inventory"] {
        own.processes.terminate(service).await?;
    }
    // The provider is another company: nobody restores its records.
    let provider = database.back_up("shop", &["provider"]).await?;
    database.restore_to(moment).await?;
    database.restore("shop", &provider).await?;
    for service in SERVICES {
        for queue in ["events", "events.dead"] {
            run.system.broker_api()?.purge(&format!("{service}.{queue}")).await?;
        }
    }
    run.phase(
        "restored",
        "the services were stopped, the whole database is at that moment, and all queues are empty",
    );

    own.processes.set("BILLING_RESTORED", "true");
    // What was pending is newer than what comes again: it must not be published first.
    own.processes.set_for_services("RELAY_WORKERS", "0");
    for service in SERVICES {
        own.processes.start_again(service).await?;
    }
    own.processes.wait_ready(CONDITION_DEADLINE).await?;
    effects_are_missing(run).await;
    let mut again = 0;
    for service in SERVICES {
        let from = before_the_backup;
        again += publish_since(run.system, service, from).await.context("failed to publish events again")?;
    }
    run.injected(format!("{again} events are published again"), again > 0);
    own.processes.set_for_services("RELAY_WORKERS", "2");
    start_all_again(run).await?;
    run.phase("recover", "the services run with their relays");
    run.steady().await?;
    run.accepted_again(SystemTime::now()).await;
    run.stop_load().await?;
    eventually("nothing to be in progress", CONDITION_DEADLINE, async || {
        let found = run.system.reconcile(&run.ledger.acknowledged()?).await?;
        Ok((found.in_progress() == 0).then_some(()))
    })
    .await?;
    compare_with_the_provider(run).await
}

/// What an operator does with the list of charges that the provider sends.
async fn compare_with_the_provider(run: &DrillRun<'_>) -> Result<()> {
    let found = run.system.reconcile(&run.ledger.acknowledged()?).await?;
    let broken = found.broken().unwrap_or_else(|| "nothing".to_owned());
    run.injected(format!("before the comparison with the provider: {broken}"), found.broken().is_some());
    let charges: Vec<Charge> = serde_json::from_str(&run.system.read(FORGOTTEN_CHARGES).await?)?;
    for Charge { charge, amount } in &charges {
        let refund = http::client()?.post(format!("{}/refunds", run.system.addresses()?.provider_url));
        let refund = refund.header("idempotency-key", format!("\"forgotten-{charge}\""));
        let answer = refund.json(&json!({ "charge": charge, "amount": amount })).send().await?;
        ensure!(answer.status().is_success(), "the provider has refused a refund: {}", answer.text().await?);
    }
    let refunded: Vec<Uuid> = serde_json::from_str(&run.system.read(FORGOTTEN_CANCELLATIONS).await?)?;
    for order in &refunded {
        cancel(run, *order).await?;
    }
    let (charges, orders) = (charges.len(), refunded.len());
    run.injected(format!("{charges} charges of forgotten orders were refunded"), charges > 0);
    let what = format!("{orders} orders were cancelled again whose charge had been refunded");
    run.injected(what, orders >= CANCELLED_SINCE);
    Ok(())
}

async fn cancel(run: &DrillRun<'_>, order: Uuid) -> Result<()> {
    let answer = http::client()?.post(format!("{}/orders/{order}/cancellation", run.system.orders_url()));
    let answer = answer.send().await?;
    ensure!(answer.status().is_success(), "a cancellation was refused: {}", answer.text().await?);
    Ok(())
}
