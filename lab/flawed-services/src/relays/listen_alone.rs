//! LISTEN as the only way to hear of events. PostgreSQL repeats no notification, so one that is sent while the listener is
//! not connected is lost: its event waits until another event is announced.

use std::time::Duration;

use database::Pool;
use messaging::Wake;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// As good as never.
pub(crate) const NO_POLL: Duration = Duration::from_secs(3_600);

const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Wakes the relay at each notification, and after a lost connection listens again.
pub(crate) async fn listen(pool: Pool, wake: Wake, stop: CancellationToken) {
    let listening = async {
        loop {
            if let Err(error) = receive(&pool, &wake).await {
                tracing::warn!(%error, "the LISTEN connection failed");
            }
            sleep(RECONNECT_AFTER).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

async fn receive(pool: &Pool, wake: &Wake) -> Result<(), sqlx::Error> {
    let mut listener = pool.listener().await?;
    let channel: String =
        sqlx::query_scalar("select 'outbox:' || current_schema()").fetch_one(&mut listener).await?;
    listener.listen(&channel).await?;
    // `None`: the connection was lost.
    while listener.try_recv().await?.is_some() {
        wake.after_commit();
    }
    Ok(())
}
