//! `BEGIN`: no client can cancel it while its answer is on the way.

use std::time::Duration;

use anyhow::{Result, bail};
use fault_proxy::{Direction, Effect, Fault};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::time::sleep;
use uuid::Uuid;

use super::{
    super::{CONDITION_DEADLINE, PROXY_ROUTE, Setup, Stage, proxied},
    judge::{Breach, judge},
};

/// How many clients hang up. One is enough, if its order's first statement is what waits for an answer: the pool may be
/// testing the connection instead, or the health check may have it.
const HANG_UPS: usize = 3;
/// How often a hang-up is tried.
const TRIES: usize = 20;
/// How long the first statement may take to reach the server.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(2);
/// How long the order service has to notice that its client is gone. If it notices later, the try shows nothing.
const NOTICE: Duration = Duration::from_millis(300);

/// The order service has one connection, and a proxy holds back the database's answers while a client hangs up. The next
/// order gets the connection as the hang-up left it. At the end the order service is killed: the database
/// rolls back what was not committed.
pub(super) async fn hang_up_during_first_statement(setup: Setup) -> Result<Option<Breach>> {
    let database = testbed::database().await?;
    let (proxy, url) = proxied(&database.url("orders")).await?;
    let setup = setup.with("ORDERS_DATABASE_CONNECTIONS", "1").with("ORDERS_DATABASE_URL", url);
    let vhost = testbed::vhost().await?;
    let mut watcher = PgConnection::connect(&database.url("orders")).await?;
    let stage = Stage::ready_on(database, &vhost.url(), setup).await?;
    let mut hang_ups = 0;
    for _ in 0..TRIES {
        one_line_order(&stage).await?;
        let before = statements(&mut watcher).await?;
        let silence = Fault::new(Effect::BlackHole, Direction::TowardClient, Duration::from_secs(30));
        proxy.set(PROXY_ROUTE, silence)?;
        let executed = eventually("the first statement to be executed", STATEMENT_DEADLINE, async || {
            Ok((statements(&mut watcher).await? != before).then_some(()))
        });
        let was_executed = tokio::select! {
            _ = stage.order() => bail!("an order was answered although the database was silent"),
            executed = executed => executed.is_ok(),
        };
        sleep(NOTICE).await;
        proxy.clear(PROXY_ROUTE)?;
        one_line_order(&stage).await?;
        hang_ups += usize::from(was_executed);
        if hang_ups == HANG_UPS {
            stage.system.kill("orders").await?;
            stage.revive().await?;
            one_line_order(&stage).await?;
            return judge(&stage).await;
        }
    }
    bail!("only {hang_ups} of {TRIES} clients hung up while the first statement waited for its answer")
}

/// Places an order of one line, which every writer inserts with one statement. Waits until the service answers again.
async fn one_line_order(stage: &Stage) -> Result<()> {
    eventually("an order to be accepted", CONDITION_DEADLINE, async || {
        let lines = json!([{ "sku": "TEA-001", "quantity": 1 }]);
        stage.order_of(Uuid::new_v4(), lines).await.map(Some)
    })
    .await
    .map(drop)
}

/// When the last first statement of an order began, on any connection: `BEGIN`, or the insert of the order.
async fn statements(watcher: &mut PgConnection) -> Result<Option<String>> {
    let sql = "select max(query_start)::text from pg_stat_activity
               where datname = current_database() and application_name = 'orders' and state <> 'active'
                 and (query ilike 'begin%' or query ilike '%insert into orders%')";
    Ok(sqlx::query_scalar(sql).fetch_one(watcher).await?)
}
