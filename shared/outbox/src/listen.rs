//! Wake-ups from one process to another, by LISTEN and NOTIFY. Optional. Without it: an event of a process without relays waits
//! for the poll of another one.

use std::time::Duration;

use database::{Pool, within_deadline};
use messaging::{Backoff, RoundLimiter, Wake};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long a subscription may be silent before it is renewed: a connection that died without a word looks the same.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How long one statement may take. The poll covers for one that is given up.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(5);

/// Wakes the relays when another writer calls `outbox_wake()`, which sends `NOTIFY`, until `stop`.
///
/// An instance with relays sends none after its own commits: all others would scan for nothing. And a `NOTIFY` inside the
/// order's transaction holds a server-wide lock until after its flush to disk: throughput falls to less than half
/// (docs/variants.md).
///
/// PostgreSQL does not repeat a notification, and the listener does not report what it missed while its connection was
/// down. So every interruption wakes the relays too.
pub async fn listen(pool: Pool, wake: Wake, stop: CancellationToken) {
    let listening = async {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            if let Err(error) = receive(&pool, &wake, &mut backoff).await {
                tracing::debug!(%error, "the LISTEN connection failed");
            }
            wake.after_commit();
            sleep(backoff.next_wait()).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Sends `NOTIFY` after the commits of a process without relays, one for all of a round, until `stop`.
pub async fn announce(pool: Pool, wake: Wake, stop: CancellationToken) {
    let announcing = async {
        let mut limiter = RoundLimiter::default();
        loop {
            wake.committed().await;
            let began = Instant::now();
            let sent = sqlx::query!("select outbox_wake()").execute(&pool);
            if let Ok(Err(error)) = timeout(STATEMENT_DEADLINE, sent).await {
                tracing::debug!(%error, "failed to wake the relays");
            }
            limiter.wait(began.elapsed()).await;
        }
    };
    stop.run_until_cancelled(announcing).await;
}

/// Receives notifications until the connection fails, or returns `Ok` when it has been silent for long.
async fn receive(pool: &Pool, wake: &Wake, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
    let subscribed = async {
        let mut listener = pool.listener().await?;
        let channel = sqlx::query_scalar!(r#"select 'outbox:' || current_schema() as "channel!""#);
        let channel = channel.fetch_one(&mut listener).await?;
        listener.listen(&channel).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let mut listener = within_deadline(STATEMENT_DEADLINE, subscribed).await?;
    backoff.reset();
    // What was committed before this moment was not announced to us.
    wake.after_commit();
    loop {
        match timeout(MAX_SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(_))) => wake.after_commit(),
            Ok(Ok(None)) => return Err(sqlx::Error::PoolClosed),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}
