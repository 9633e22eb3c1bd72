//! Wake-ups change how soon an event is published, never whether. With all of them lost, the poll finds it.

use std::{sync::Arc, time::Duration};

use events::Backoff;
use sqlx::{PgPool, postgres::PgListener};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// At most a hundred notifications a second to other instances, however many orders are placed: each costs every
/// listener a wake-up, and one that says "look" says all there is to say.
const NOTIFY_PAUSE: Duration = Duration::from_millis(10);

/// A link that has died without a word looks like silence. After this much silence the subscription is renewed.
const SILENCE: Duration = Duration::from_secs(30);

/// A statement that takes longer than this is given up; the poll covers for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The bell between whoever commits an event and whoever publishes it.
#[derive(Clone, Default)]
pub struct Wake(Arc<Bells>);

#[derive(Default)]
struct Bells {
    /// Rings the relays of this process.
    here: Notify,
    /// Rings [`notify_others`], which tells the other instances.
    elsewhere: Notify,
}

impl Wake {
    /// A bell that nobody has rung yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// To be called after the commit. Before it, the relay would look, see nothing yet, and go to sleep again.
    pub fn after_commit(&self) {
        self.0.here.notify_one();
        self.0.elsewhere.notify_one();
    }

    /// Waits for a ring. One that came while nobody was waiting is kept, so a relay that was busy misses none.
    pub(crate) async fn woken(&self) {
        self.0.here.notified().await;
    }
}

/// Tells other instances that there is something to publish, at most once every 10 ms, until `stop`.
///
/// In a transaction of its own, on purpose. A `NOTIFY` inside the order's transaction takes a lock of the whole server that
/// is held until after that commit's flush to disk: commits then queue up behind each other, and throughput falls to
/// a third or a ninth, even with nobody listening.
pub async fn notify_others(pool: PgPool, wake: Wake, instance: Uuid, stop: CancellationToken) {
    let notify = async {
        loop {
            wake.0.elsewhere.notified().await;
            let sent =
                sqlx::query!("select pg_notify('outbox:' || current_schema(), $1)", instance.to_string())
                    .execute(&pool);
            // A failure needs no handling: whoever was not told finds the event by polling.
            match tokio::time::timeout(PATIENCE, sent).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "other instances were not notified"),
                Err(_) => tracing::debug!("other instances were not notified in time"),
            }
            sleep(NOTIFY_PAUSE).await;
        }
    };
    stop.run_until_cancelled(notify).await;
}

/// Rings the bell when another instance, or another writer through `outbox_wake()`, says so, until `stop`.
///
/// PostgreSQL does not repeat a notification, and the listener does not say what it missed while its connection was
/// down. So every interruption means "there may be something: look".
pub async fn listen(pool: PgPool, wake: Wake, instance: Uuid, stop: CancellationToken) {
    let own = instance.to_string();
    let listening = async {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            if let Err(error) = subscribe(&pool, &wake, &own, &mut backoff).await {
                tracing::debug!(%error, "the subscription to wake-ups ended");
            }
            wake.0.here.notify_one();
            sleep(backoff.next_wait()).await;
        }
    };
    stop.run_until_cancelled(listening).await;
}

/// Listens until the link fails or has been silent for long. Never `Ok` for a reason other than silence.
async fn subscribe(pool: &PgPool, wake: &Wake, own: &str, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
    let subscribed = async {
        let mut listener = PgListener::connect_with(pool).await?;
        let channel = sqlx::query_scalar!(r#"select 'outbox:' || current_schema() as "channel!""#);
        let channel = channel.fetch_one(&mut listener).await?;
        listener.listen(&channel).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    let mut listener =
        tokio::time::timeout(PATIENCE, subscribed).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    backoff.reset();
    // What was committed before this moment was not announced to us.
    wake.0.here.notify_one();
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            // Our own relays have been rung already.
            Ok(Ok(Some(notification))) if notification.payload() == own => {}
            Ok(Ok(Some(_))) => wake.0.here.notify_one(),
            Ok(Ok(None)) => return Err(sqlx::Error::PoolClosed),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}
