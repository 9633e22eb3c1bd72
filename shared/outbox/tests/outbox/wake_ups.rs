//! Each kind of wake-up makes an idle relay publish. Without any of them the poll does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use database::{Pool, PoolKind};
use fault_proxy::{Proxy, Route};
use messaging::{Claim, Error, Relay, RelayOptions, Store, Wake};
use outbox::{PostgresStore, PostgresTransaction};
use testbed::eventually;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::support::{DEADLINE, NEVER, Outbox, ScriptedBroker, advance_clock, event, pool};

/// How many events a test appends, one after another. Subscribing wakes the relay too, once or twice. With this many
/// events most are published only if the wake-up under test arrives.
const ROUNDS: usize = 20;

/// A listener renews its connection after half a minute of silence.
const LONGER_THAN_SILENCE: Duration = Duration::from_secs(31);

/// As many as a relay's pool had connections.
const SILENCES: usize = 7;

/// A store that counts how often a scan has found nothing.
struct CountingStore {
    store: PostgresStore,
    idle_scans: Arc<AtomicUsize>,
}

impl Store for CountingStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<PostgresTransaction<'_>>, Error> {
        let claimed = self.store.claim(lanes, batch).await?;
        if matches!(claimed, Claim::Idle) {
            self.idle_scans.fetch_add(1, Ordering::Relaxed);
        }
        Ok(claimed)
    }
}

/// A relay in its own task. It ends with this value.
struct RunningRelay {
    idle_scans: Arc<AtomicUsize>,
    _stop: DropGuard,
}

impl RunningRelay {
    /// Starts a relay and waits until it is idle. Later events are published because of a wake-up or a poll.
    async fn start(outbox: &Outbox, poll: Duration, wake: &Wake) -> anyhow::Result<Self> {
        let (stop, idle_scans) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
        let store = CountingStore {
            store: PostgresStore::new(outbox.pool.clone(), poll),
            idle_scans: idle_scans.clone(),
        };
        // An idle relay sleeps no longer than until its next full scan.
        let options = RelayOptions { poll, full_scan: poll, ..RelayOptions::default() };
        let relay = Relay::new(store, ScriptedBroker::that_confirms(), options);
        tokio::spawn(relay.run(wake.clone(), stop.clone()));
        let relay = Self { idle_scans, _stop: stop.drop_guard() };
        relay.has_been_idle(1).await?;
        Ok(relay)
    }

    /// Waits until `scans` scans have found nothing since the start.
    async fn has_been_idle(&self, scans: usize) -> anyhow::Result<()> {
        eventually("the relay to be idle", DEADLINE, async || {
            Ok((self.idle_scans.load(Ordering::Relaxed) >= scans).then_some(()))
        })
        .await
    }

    /// Appends events one after another, and calls `wake` once after each commit. A relay that has published all it found
    /// does not look again by itself.
    async fn publishes_after(
        &self,
        outbox: &Outbox,
        wake: impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for _ in 0..ROUNDS {
            let event = outbox.append(Uuid::now_v7(), 1).await?;
            wake().await?;
            outbox.is_published(event).await?;
        }
        Ok(())
    }
}

/// A relay that is idle until it is woken.
async fn idle_relay() -> anyhow::Result<(Outbox, Wake, RunningRelay)> {
    let (outbox, wake) = (Outbox::new().await?, Wake::new());
    let relay = RunningRelay::start(&outbox, NEVER, &wake).await?;
    Ok((outbox, wake, relay))
}

/// Starts a listener that wakes the relay, and waits until it has subscribed and the wake-up for that is used up.
async fn listen(pool: &Pool, outbox: &Outbox, relay: &RunningRelay, wake: Wake) -> anyhow::Result<DropGuard> {
    let idle_scans = relay.idle_scans.load(Ordering::Relaxed);
    let stop = CancellationToken::new();
    tokio::spawn(outbox::listen(pool.clone(), wake, stop.clone()));
    eventually("the subscription", DEADLINE, async || {
        Ok(outbox.listening_sessions().await?.first().map(drop))
    })
    .await?;
    relay.has_been_idle(idle_scans + 1).await?;
    Ok(stop.drop_guard())
}

impl Outbox {
    /// The process ids of the sessions that have executed `LISTEN`.
    async fn listening_sessions(&self) -> anyhow::Result<Vec<i32>> {
        let sql =
            "select pid from pg_stat_activity where query ilike 'listen%' and datname = current_database()";
        Ok(sqlx::query_scalar(sql).fetch_all(&self.pool).await?)
    }

    /// Calls the SQL function with which other writers wake the relays.
    async fn wake_from_sql(&self) -> anyhow::Result<()> {
        sqlx::query("select outbox_wake()").execute(&self.pool).await?;
        Ok(())
    }
}

#[tokio::test]
async fn commit_in_this_process_wakes_the_relay() -> anyhow::Result<()> {
    let (outbox, wake, relay) = idle_relay().await?;
    relay
        .publishes_after(&outbox, async || {
            wake.after_commit();
            Ok(())
        })
        .await
}

#[tokio::test]
async fn poll_finds_events_when_all_wake_ups_are_lost() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let relay = RunningRelay::start(&outbox, Duration::from_millis(50), &Wake::new()).await?;
    relay.publishes_after(&outbox, async || Ok(())).await
}

#[tokio::test]
async fn outbox_wake_in_sql_wakes_the_relay() -> anyhow::Result<()> {
    let (outbox, wake, relay) = idle_relay().await?;
    let _listener = listen(&outbox.pool, &outbox, &relay, wake).await?;
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await
}

#[tokio::test]
async fn commit_in_a_process_without_relays_wakes_the_relay_of_another() -> anyhow::Result<()> {
    let (outbox, wake, relay) = idle_relay().await?;
    let _listener = listen(&outbox.pool, &outbox, &relay, wake).await?;
    let (without_relays, stop) = (Wake::new(), CancellationToken::new());
    tokio::spawn(outbox::announce(outbox.pool.clone(), without_relays.clone(), stop.clone()));
    let _stop = stop.drop_guard();
    relay
        .publishes_after(&outbox, async || {
            without_relays.after_commit();
            Ok(())
        })
        .await
}

#[tokio::test]
async fn listener_that_lost_its_connection_wakes_the_relay_and_subscribes_again() -> anyhow::Result<()> {
    let (outbox, wake, relay) = idle_relay().await?;
    let _listener = listen(&outbox.pool, &outbox, &relay, wake).await?;
    let session = outbox.listening_sessions().await?.first().copied();
    // On one connection, because no other can be opened.
    let mut transaction = outbox.pool.begin().await?;
    outbox.limit_connections(0).await?;
    let terminate = sqlx::query_scalar("select pg_terminate_backend($1, 8000)").bind(session);
    assert!(terminate.fetch_one(&mut *transaction).await?, "the listener's session has not ended");

    // No notification is sent for this commit, and the disconnected listener would miss one. It wakes the relay all the
    // same when it has subscribed again.
    let missed = event(Uuid::now_v7(), 1);
    outbox::append(&mut transaction, std::slice::from_ref(&missed)).await?;
    transaction.commit().await?;
    outbox.limit_connections(-1).await?;
    outbox.is_published(missed.event_id).await?;
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await
}

/// PostgreSQL does not tell a listener that its notifications no longer arrive, and the connection looks idle.
#[tokio::test]
async fn listener_whose_connections_fall_silent_subscribes_again_each_time() -> anyhow::Result<()> {
    let (outbox, wake, relay) = idle_relay().await?;
    let network = Proxy::start(vec![Route::to("database", &outbox.url())?]).await?;
    let pool = pool(&network.through("database", &outbox.url())?, 1, PoolKind::AsyncCommit);
    let _listener = listen(&pool, &outbox, &relay, wake).await?;
    for round in 1..=SILENCES {
        // The server may have subscribed a listener that has not read the answer yet. The clock would pass it by.
        relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await?;
        network.silence_open("database")?;
        advance_clock(LONGER_THAN_SILENCE).await;
        // The server does not know that the earlier ones are silent.
        eventually("another subscription", DEADLINE, async || {
            Ok((outbox.listening_sessions().await?.len() > round).then_some(()))
        })
        .await?;
    }
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await?;
    sqlx::query("select").execute(&pool).await.context("the listener keeps a place in the pool")?;
    Ok(())
}
