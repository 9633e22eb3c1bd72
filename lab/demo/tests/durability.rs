//! What a crash of PostgreSQL must not lose.

use demo::RunningSystem;
use demo::fault::Fault;
use demo::lab::{CONDITION_DEADLINE, Setup};

/// The server's default is to acknowledge commits that are in its own memory only, and it writes them out every ten seconds. An
/// order that is acknowledged and then lost would break the first promise.
#[tokio::test]
async fn acknowledged_order_survives_the_crash_of_a_server_with_asynchronous_commits() -> anyhow::Result<()> {
    let system = RunningSystem::private(Setup::default()).await?;
    let mut admin = system.connect("admin").await?;
    for sql in [
        "alter system set synchronous_commit = off",
        "alter system set wal_writer_delay = '10s'",
        "select pg_reload_conf()",
    ] {
        sqlx::query(sql).execute(&mut admin).await?;
    }
    system.order().await?;
    system.held().await?;
    for _ in 0..3 {
        // The other services' commits would write this one too: they are paused.
        for service in ["inventory", "billing"] {
            system.processes()?.pause(service)?;
        }
        system.order().await?;
        let killed = Fault::Kill("database").inject(&system).await?;
        killed.repair(&system).await?;
        for service in ["inventory", "billing"] {
            system.processes()?.resume(service)?;
        }
        system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
        system.held().await?;
    }
    Ok(())
}
