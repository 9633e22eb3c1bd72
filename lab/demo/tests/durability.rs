//! What a crash of PostgreSQL must not lose.

use demo::lab::{CONDITION_DEADLINE, Setup, Stage};
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Passwords, Postgres, eventually};

/// The server's default is to acknowledge commits that are not on disk yet, and it writes them out every ten seconds. An
/// order that is acknowledged and then lost would break the first promise.
#[tokio::test]
async fn acknowledged_order_survives_the_crash_of_a_server_with_asynchronous_commits() -> anyhow::Result<()> {
    let postgres = Postgres::private().await?;
    let (admin_url, passwords) = (postgres.admin_url("postgres"), Passwords::all("durability"));
    testbed::bootstrap(&admin_url, &passwords).await?;
    let mut admin = PgConnection::connect(&admin_url).await?;
    for sql in [
        "alter system set synchronous_commit = off",
        "alter system set wal_writer_delay = '10s'",
        "select pg_reload_conf()",
    ] {
        sqlx::query(sql).execute(&mut admin).await?;
    }
    let urls = DatabaseUrls::new(&admin_url, &passwords)?;
    let vhost = testbed::vhost().await?;
    let stage = Stage::start_with(&urls, &vhost.url(), Setup::default()).await?;
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    stage.order().await?;
    stage.held().await?;
    for _ in 0..3 {
        // The other services' commits would bring this one to disk: they are paused.
        for service in ["inventory", "billing"] {
            stage.system.pause(service)?;
        }
        // Right after a restart the first answer may be 503: the pool finds its connections broken one by one.
        eventually("an order to be accepted", CONDITION_DEADLINE, async || Ok(stage.order().await.ok()))
            .await?;
        postgres.kill().await?;
        postgres.start().await?;
        for service in ["inventory", "billing"] {
            stage.system.resume(service)?;
        }
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
        stage.held().await?;
    }
    Ok(())
}
