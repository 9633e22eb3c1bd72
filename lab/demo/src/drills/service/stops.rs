//! Services that are stopped in order, or frozen.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};
use crate::lab::CONDITION_DEADLINE;
use crate::own_system::OwnSystem;
use crate::target::{Action, Target};

pub(in crate::drills) const TERMINATE: Drill = Drill {
    name: "services-terminated",
    group: Group::Service,
    teaches: "A deployment is the most frequent fault. A process that is asked to stop finishes what it has begun.",
    question: "Each service gets SIGTERM under load. Which messages come twice, and which clients get no answer?",
    claim: "A service that is asked to stop exits with code 0, no client is left without an answer, and nothing is lost.",
    outage: Duration::from_secs(1),
    system: Subject::Own(OwnSystem::default),
    run: |run| Box::pin(terminate(run)),
};

pub(in crate::drills) const FREEZE: Drill = Drill {
    name: "consumer-frozen",
    group: Group::Service,
    teaches: "A consumer that hangs delays its own work. Its messages wait in its queue, and the others go on.",
    question: "Inventory is stopped with SIGSTOP. Are orders accepted? Are customers charged?",
    claim: "While inventory is frozen, orders are accepted and charged. They are confirmed after it continues.",
    outage: Duration::from_secs(10),
    system: Subject::Running,
    run: |run| Box::pin(freeze(run)),
};

async fn terminate(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let processes = &run.own()?.processes;
    let mut facts = vec![];
    for service in ["orders", "inventory", "billing"] {
        let code = processes.terminate(service).await?;
        run.phase("stop", format!("{service} was asked to stop, and exited with {code:?}"));
        facts.push(Fact { what: format!("{service} exited with code 0"), observed: code == Some(0) });
        sleep(run.outage).await;
        processes.start_again(service).await?;
        processes.wait_ready(CONDITION_DEADLINE).await?;
        sleep(run.outage).await;
    }
    let summary = run.end(load).await?;
    run.report(facts, summary, Refusals::AreExpected).await
}

async fn freeze(run: &DrillRun<'_>) -> Result<Report> {
    let load = run.steady().await;
    let inventory = Target::Service("inventory".to_owned());
    run.system.act(Action::Pause, &inventory).await?;
    run.phase("outage", "stopped inventory with SIGSTOP");
    let accepted = run.accepted_meanwhile().await;
    let open = run
        .felt("accepted orders wait for inventory", async || {
            let open = run.system.metric("orders", "orders_open").await?;
            Ok((open > f64::from(run.rate)).then(|| format!("{open} accepted orders wait for inventory")))
        })
        .await;
    run.system.act(Action::Resume, &inventory).await?;
    let summary = run.end(load).await?;
    let mut report = run.report(vec![accepted, open], summary, Refusals::BreakTheClaim).await?;
    run.refute_time_outs(&mut report).await?;
    Ok(report)
}
