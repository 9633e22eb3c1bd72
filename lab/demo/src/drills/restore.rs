//! A service's database is restored from a backup. What other services have published since comes again; what the service
//! itself has promised since is gone.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;
use crate::set_aside::publish_since;

pub(super) static DRILLS: [Drill; 1] = [Drill {
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
}];

const ROW: Drill = Drill {
    group: Group::Database,
    system: Subject::Own(|| OwnSystem { restores: true, ..OwnSystem::default() }),
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
    let missing = "effects of acknowledged orders are missing";
    run.seen_injected(missing, async || {
        let found = run.system.reconcile(&run.ledger.acknowledged()?).await?;
        Ok(found.broken().map(|broken| format!("before the command: {broken}")))
    })
    .await;

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

/// What an operator does: `cargo demo failed replay --published --at orders --from …`.
async fn publish_again(run: &DrillRun<'_>, from: SystemTime) -> Result<usize> {
    publish_since(run.system, "orders", from).await.context("failed to publish events again")
}
