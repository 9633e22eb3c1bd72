//! Optional. Without it: each relay polls, and an event waits for up to a second. Wake-ups change how soon an event is
//! published, never whether: if all of them are lost, the poll finds it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use database::{Pool, within_deadline};
use messaging::{Backoff, RoundLimiter};
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long a subscription may be silent before it is renewed: a connection that died without a word looks the same.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How long one statement may take. The poll covers for one that is given up.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(5);

/// Tells the relays that an event was committed. Cheap to clone.
#[derive(Clone, Default)]
pub struct Wake(Arc<Signals>);

#[derive(Default)]
struct Signals {
    /// Wakes one relay.
    committed: Notify,
    /// One relay of this process at a time waits for `committed` or for the poll, and the others wait for this: the limit is
    /// one for all of them, and so is the poll.
    limiter: Mutex<RoundLimiter>,
    /// Whether the last step of a relay left events behind.
    behind: AtomicBool,
}

impl Wake {
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the relays. Call it after the commit: before it, the relay would scan, find nothing, and sleep again.
    pub fn after_commit(&self) {
        self.0.committed.notify_one();
    }

    /// Whether the relays of this process have more events to publish than one step takes. Not while the broker is unavailable:
    /// then they do not compete with other work.
    pub fn is_behind(&self) -> bool {
        self.0.behind.load(Relaxed)
    }

    pub(crate) fn set_behind(&self, behind: bool) {
        self.0.behind.store(behind, Relaxed);
    }

    /// Waits for a wake-up, or for as long as `poll`. A wake-up that came while no relay was waiting is kept, so a busy relay
    /// misses none. `worked` is how long the caller's last step was at work.
    pub(crate) async fn woken(&self, worked: Duration, poll: Duration) {
        let mut limiter = self.0.limiter.lock().await;
        // First the pause, then the wake-up: what is committed during the pause needs no separate step.
        limiter.wait(worked).await;
        // A time-out is the poll.
        let _ = timeout(poll, self.0.committed.notified()).await;
    }
}

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
            wake.0.committed.notify_one();
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
            wake.0.committed.notified().await;
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
    wake.0.committed.notify_one();
    loop {
        match timeout(MAX_SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(_))) => wake.0.committed.notify_one(),
            Ok(Ok(None)) => return Err(sqlx::Error::PoolClosed),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}
