//! Wake-ups change how soon an event is published, never whether. If all of them are lost, the poll finds the event.

use std::{sync::Arc, time::Duration};

use messaging::{Backoff, RoundLimiter};
use sqlx::{PgPool, postgres::PgListener};
use tokio::{
    sync::{Mutex, Notify},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The pause after each notification to other instances: at most ten a second, however many orders are placed. Each costs
/// two statements and every listener a wake-up, and the relays of this process are at work already.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);

/// How long a subscription may be silent before it is renewed: a connection that died without a word looks the same.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How long one statement may take. The poll covers for one that is given up.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(5);

/// Tells the relays that an event was committed. Cheap to clone.
#[derive(Clone)]
pub struct Wake(Arc<Signals>);

struct Signals {
    /// Wakes one relay of this process.
    local: Notify,
    /// One relay at a time waits for `local`, and the others wait for this: the limit is one for all of them.
    limiter: Mutex<RoundLimiter>,
    /// Wakes [`notify_other_instances`].
    remote: Notify,
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}

impl Wake {
    pub fn new() -> Self {
        let limiter = Mutex::default();
        Self(Arc::new(Signals { local: Notify::new(), limiter, remote: Notify::new() }))
    }

    /// Wakes the relays. Call it after the commit: before it, the relay would scan, find nothing, and sleep again.
    pub fn after_commit(&self) {
        self.0.local.notify_one();
        self.0.remote.notify_one();
    }

    /// Waits for a wake-up. One that came while no relay was waiting is kept, so a busy relay misses none. `last_step` is
    /// how long the caller's last step took.
    pub(crate) async fn woken(&self, last_step: Duration) {
        let mut limiter = self.0.limiter.lock().await;
        // First the pause, then the wake-up: what is committed during the pause needs no step of its own.
        limiter.wait(last_step).await;
        self.0.local.notified().await;
    }
}

/// Sends `NOTIFY` to other instances after commits, at most once every 100 ms, until `stop`.
///
/// In a transaction of its own: a `NOTIFY` inside the order's transaction takes a server-wide lock that is held until
/// after that commit's flush to disk. Commits then queue behind each other, and throughput falls to less than half,
/// even when no connection listens (docs/variants.md).
pub async fn notify_other_instances(pool: PgPool, wake: Wake, instance: Uuid, stop: CancellationToken) {
    let notify = async {
        loop {
            wake.0.remote.notified().await;
            let sent =
                sqlx::query!("select pg_notify('outbox:' || current_schema(), $1)", instance.to_string())
                    .execute(&pool);
            // A failure needs no handling: the other instances poll.
            match timeout(STATEMENT_DEADLINE, sent).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "failed to notify other instances"),
                Err(_) => tracing::debug!("failed to notify other instances: no answer in time"),
            }
            sleep(NOTIFY_PAUSE).await;
        }
    };
    stop.run_until_cancelled(notify).await;
}

/// Wakes the local relays when another instance, or another writer through `outbox_wake()`, sends `NOTIFY`, until `stop`.
///
/// PostgreSQL does not repeat a notification, and the listener does not report what it missed while its connection was
/// down. So every interruption wakes the relays too.
pub async fn listen(pool: PgPool, wake: Wake, instance: Uuid, stop: CancellationToken) {
    let own = instance.to_string();
    let listening = async {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            if let Err(error) = receive(&pool, &wake, &own, &mut backoff).await {
                tracing::debug!(%error, "the LISTEN connection failed");
            }
            wake.0.local.notify_one();
            sleep(backoff.next_wait()).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Receives notifications until the connection fails, or returns `Ok` when it has been silent for long.
async fn receive(pool: &PgPool, wake: &Wake, own: &str, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
    let subscribed = async {
        let mut listener = PgListener::connect_with(pool).await?;
        let channel = sqlx::query_scalar!(r#"select 'outbox:' || current_schema() as "channel!""#);
        let channel = channel.fetch_one(&mut listener).await?;
        listener.listen(&channel).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let mut listener =
        timeout(STATEMENT_DEADLINE, subscribed).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    backoff.reset();
    // What was committed before this moment was not announced to us.
    wake.0.local.notify_one();
    loop {
        match timeout(MAX_SILENCE, listener.try_recv()).await {
            // The relays of this process have been woken already.
            Ok(Ok(Some(notification))) if notification.payload() == own => {}
            Ok(Ok(Some(_))) => wake.0.local.notify_one(),
            Ok(Ok(None)) => return Err(sqlx::Error::PoolClosed),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}
