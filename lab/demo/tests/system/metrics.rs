//! What the alert rules need of `/metrics`.

use anyhow::{Context as _, Result, ensure};
use demo::RunningSystem;
use demo::fault::Fault;
use demo::lab::{CONDITION_DEADLINE, Setup};
use testbed::eventually;

/// `increase` does not see the first value of a series, so a counter that begins at 1 fires no alert.
#[tokio::test]
async fn counters_whose_increase_alerts_read_begin_at_zero() -> Result<()> {
    let rules = include_str!("../../../observe/alerts.yaml");
    let counters = rules.split("increase(").skip(1);
    let counters: Vec<_> = counters.filter_map(|rest| rest.split(['[', '{']).next()).collect();
    ensure!(counters.len() >= 5, "the rules were not read: {counters:?}");
    // Without a trace store there are no spans to lose. Nothing listens there, and nothing is sent: no order is placed.
    let setup = Setup::default().with("ORDERS_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let system = RunningSystem::shared(setup).await?;
    for counter in counters {
        // The counters of queues appear with the connection to the broker.
        eventually(counter, CONDITION_DEADLINE, async || {
            let page = system.metrics("orders").await?;
            let values = page.lines().filter(|line| {
                line.starts_with(&format!("{counter} ")) || line.starts_with(&format!("{counter}{{"))
            });
            let values: Vec<_> = values.filter_map(|line| line.rsplit(' ').next()).collect();
            ensure!(!values.is_empty(), "it has no series");
            ensure!(values.iter().all(|value| *value == "0"), "it is {values:?}");
            Ok(Some(()))
        })
        .await
        .with_context(|| format!("{counter}, which alerts.yaml reads"))?;
    }
    Ok(())
}

/// One instance that reaches it is enough: the alert takes the largest value.
#[tokio::test]
async fn a_database_that_does_not_answer_is_not_available() -> Result<()> {
    let system = RunningSystem::private(Setup::default()).await?;
    let is = async |expected: f64| {
        eventually("database_available", CONDITION_DEADLINE, async || {
            let value = system.metric("billing", "database_available").await?;
            let page = system.metrics("billing").await?;
            ensure!(page.contains("\ndatabase_available ") && value == expected, "it is {value}");
            Ok(Some(()))
        })
        .await
    };
    is(1.0).await?;
    let database = Fault::Kill("database").inject(&system).await?;
    is(0.0).await?;
    // From the first moment also of a process that has never reached it.
    system.processes()?.terminate("billing").await?;
    system.processes()?.start_again("billing").await?;
    is(0.0).await?;
    database.repair(&system).await?;
    is(1.0).await
}
