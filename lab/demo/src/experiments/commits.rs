//! Commits: orders are committed side by side.

use anyhow::Result;
use sqlx::PgConnection;
use testbed::eventually;

use super::judge::{Breach, judge};
use crate::fault::Fault;
use crate::lab::{CONDITION_DEADLINE, Setup};
use crate::running_system::RunningSystem;

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
    let watch = async {
        let waiting = eventually("both orders to wait", CONDITION_DEADLINE, async || {
            let (locks, standby) = waiting(&mut admin).await?;
            Ok((locks + standby == 2).then_some(locks))
        })
        .await;
        hanging.repair(&system).await?;
        waiting
    };
    let (locks, first, second) = tokio::join!(watch, system.order(), system.order());
    if locks? > 0 {
        return Ok(Breach::new("speed", "an order's commit waited for another order's commit"));
    }
    first.and(second)?;
    judge(&system).await
}

/// How many order writes wait for a lock, and how many for the standby.
async fn waiting(admin: &mut PgConnection) -> Result<(i64, i64)> {
    let sql = "select count(*) filter (where wait_event_type = 'Lock'), count(*) filter (where wait_event = 'SyncRep')
               from pg_stat_activity where application_name in ('orders', 'orders-variant')";
    Ok(sqlx::query_as(sql).fetch_one(admin).await?)
}
