//! Commits: orders are committed side by side.

use anyhow::Result;
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Passwords, Postgres, eventually, hang_commits, release_commits};

use super::{
    super::{CONDITION_DEADLINE, Setup, Stage},
    judge::{Breach, judge},
};

/// On a private server, on which a commit waits for a standby that does not exist, so that it lasts until the
/// experiment has seen it. Two orders at once then wait side by side. With `NOTIFY` inside, the second waits for the
/// commit of the first.
pub(super) async fn two_slow_commits(setup: Setup) -> Result<Option<Breach>> {
    let postgres = Postgres::private().await?;
    let (admin_url, passwords) = (postgres.admin_url("postgres"), Passwords::all("experiment"));
    testbed::bootstrap(&admin_url, &passwords).await?;
    let urls = DatabaseUrls::new(&admin_url, &passwords)?;
    let vhost = testbed::vhost().await?;
    let stage = Stage::start_with(&urls, &vhost.url(), setup).await?;
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    // To its end, so that no other commit waits for the standby.
    stage.order().await?;
    stage.held().await?;

    let mut admin = PgConnection::connect(&admin_url).await?;
    hang_commits(&admin_url).await?;
    let watch = async {
        let waiting = eventually("both orders to wait", CONDITION_DEADLINE, async || {
            let (locks, standby) = waiting(&mut admin).await?;
            Ok((locks + standby == 2).then_some(locks))
        })
        .await;
        release_commits(&admin_url).await?;
        waiting
    };
    let (locks, first, second) = tokio::join!(watch, stage.order(), stage.order());
    if locks? > 0 {
        return Ok(Breach::new("speed", "an order's commit waited for another order's commit"));
    }
    first.and(second)?;
    judge(&stage).await
}

/// How many order writes wait for a lock, and how many for the standby.
async fn waiting(admin: &mut PgConnection) -> Result<(i64, i64)> {
    let sql = "select count(*) filter (where wait_event_type = 'Lock'), count(*) filter (where wait_event = 'SyncRep')
               from pg_stat_activity where application_name in ('orders', 'orders-variant')";
    Ok(sqlx::query_as(sql).fetch_one(admin).await?)
}
