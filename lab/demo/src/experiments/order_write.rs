//! The order write: one commit for the order and its event, which no client can cancel, side by side with others.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fault_proxy::{Direction, Effect};
use serde_json::json;
use sqlx::PgConnection;
use testbed::{eventually, longer};
use tokio::time::sleep;
use uuid::Uuid;

use super::judge::{Breach, judge};
use crate::fault::Fault;
use crate::http::RETRY_PAUSE;
use crate::lab::{CONDITION_DEADLINE, Setup};
use crate::running_system::RunningSystem;

/// How many clients hang up. One is enough, if its order's first statement is what waits for an answer: the pool may be
/// testing the connection instead, or the health check may have it.
const HANG_UPS: usize = 3;
/// How often a hang-up is tried.
const TRIES: usize = 20;
/// How long the first statement may take to reach the server.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(2);
/// How long the order service has to notice that its client is gone. If it notices later, the try shows nothing.
const NOTICE: Duration = Duration::from_millis(300);

static SILENCE: Fault<'_> = Fault::network(
    "the database hears orders; orders hears nothing",
    &["orders-database"],
    Effect::BlackHole,
    Direction::TowardClient,
);

/// The order service has one connection, and a proxy holds back the database's answers while a client hangs up. The next
/// order gets the connection as the hang-up left it. At the end the order service is killed: the database
/// rolls back what was not committed.
pub(super) async fn hang_up_during_first_statement(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::private(setup.with("ORDERS_DATABASE_CONNECTIONS", "1")).await?;
    let mut watcher = system.connect("orders").await?;
    let mut hang_ups = 0;
    for _ in 0..TRIES {
        one_line_order(&system).await?;
        let before = statements(&mut watcher).await?;
        let silent = SILENCE.inject(&system).await?;
        let executed = eventually("the first statement to be executed", STATEMENT_DEADLINE, async || {
            Ok((statements(&mut watcher).await? != before).then_some(()))
        });
        let was_executed = tokio::select! {
            order = system.order_once() => {
                ensure!(order.is_err(), "an order was accepted although the database was silent");
                false
            }
            executed = executed => executed.is_ok(),
        };
        sleep(longer(NOTICE)).await;
        silent.repair(&system).await?;
        one_line_order(&system).await?;
        hang_ups += usize::from(was_executed);
        if hang_ups == HANG_UPS {
            system.processes()?.kill("orders").await?;
            system.revive().await?;
            one_line_order(&system).await?;
            return judge(&system).await;
        }
    }
    bail!("only {hang_ups} of {TRIES} clients hung up while the first statement waited for its answer")
}

/// Places an order of one line, which every writer inserts with one statement. Waits until the service answers again.
async fn one_line_order(system: &RunningSystem) -> Result<()> {
    let lines = json!([{ "sku": "TEA-001", "quantity": 1 }]);
    system.order_of(Uuid::new_v4(), lines).await.map(drop)
}

/// When the last first statement of an order began, on any connection: `BEGIN`, or the insert of the order.
async fn statements(watcher: &mut PgConnection) -> Result<Option<String>> {
    let sql = "select max(query_start)::text from pg_stat_activity
               where datname = current_database() and application_name = 'orders' and state <> 'active'
                 and (query ilike 'begin%' or query ilike '%insert into orders%')";
    Ok(sqlx::query_scalar(sql).fetch_one(watcher).await?)
}

/// On private servers, on which a commit waits for a standby that does not exist, so that it lasts until the
/// experiment has seen it. Two orders at once then wait side by side. With `NOTIFY` inside, the second waits for the
/// commit of the first.
pub(super) async fn two_slow_commits(setup: Setup) -> Result<Option<Breach>> {
    let system = RunningSystem::private(setup).await?;
    // To its end, so that no other commit waits for the standby.
    system.order().await?;
    system.held().await?;

    let mut admin = system.connect("admin").await?;
    let hanging = Fault::HangCommits.inject(&system).await?;
    let seen = Cell::new(false);
    let watch = async {
        let waiting = eventually("both orders to wait", CONDITION_DEADLINE, async || {
            let (locks, standby) = waiting(&mut admin).await?;
            Ok((locks + standby >= 2).then_some(locks))
        })
        .await;
        seen.set(true);
        hanging.repair(&system).await?;
        waiting
    };
    // Each time another order: one with the same key would wait for the first attempt.
    let place = async || {
        while system.order_once().await.is_err() && !seen.get() {
            sleep(RETRY_PAUSE).await;
        }
    };
    let (locks, (), ()) = tokio::join!(watch, place(), place());
    if locks? > 0 {
        return Ok(Breach::new("speed", "an order's commit waited for another order's commit"));
    }
    judge(&system).await
}

/// How many order writes wait for a lock, and how many for the standby.
async fn waiting(admin: &mut PgConnection) -> Result<(i64, i64)> {
    let sql = "select count(*) filter (where wait_event_type = 'Lock'), count(*) filter (where wait_event = 'SyncRep')
               from pg_stat_activity where application_name in ('orders', 'orders-variant')";
    Ok(sqlx::query_as(sql).fetch_one(admin).await?)
}
