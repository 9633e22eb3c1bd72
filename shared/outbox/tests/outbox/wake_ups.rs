//! Each kind of wake-up makes an idle relay publish. Without any of them the poll does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outbox::{
    Error, PostgresStore, PostgresTransaction, Relay, RelayOptions, Wake,
    store::{ClaimResult, Store},
};
use sqlx::{PgPool, postgres::PgPoolOptions};
use testbed::eventually;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use crate::support::{DEADLINE, NEVER, Outbox, ScriptedBroker};

/// How many events a test appends, one after another. Subscribing wakes the relay too, once or twice. With this many
/// events most are published only if the wake-up under test arrives.
const ROUNDS: usize = 20;

/// A listener renews its connection after half a minute of silence.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(90);

/// A store that counts how often a scan has found nothing.
struct CountingStore {
    store: PostgresStore,
    idle_scans: Arc<AtomicUsize>,
}

impl Store for CountingStore {
    type Transaction<'store> = PostgresTransaction<'store>;

    async fn claim_lanes(
        &mut self,
        first_lane: i16,
        max_lanes: u8,
    ) -> Result<ClaimResult<PostgresTransaction<'_>>, Error> {
        let claimed = self.store.claim_lanes(first_lane, max_lanes).await?;
        if matches!(claimed, ClaimResult::Idle) {
            self.idle_scans.fetch_add(1, Ordering::Relaxed);
        }
        Ok(claimed)
    }
}

/// A relay in a task of its own. It ends with this value.
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
        let relay = Relay::over(store, ScriptedBroker::that_confirms(), options);
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

/// Starts a listener that wakes the relay, and waits until it has subscribed and the wake-up for that is used up.
async fn listen(
    pool: &PgPool,
    outbox: &Outbox,
    relay: &RunningRelay,
    wake: Wake,
) -> anyhow::Result<DropGuard> {
    let idle_scans = relay.idle_scans.load(Ordering::Relaxed);
    let stop = CancellationToken::new();
    tokio::spawn(outbox::listen(pool.clone(), wake, Uuid::now_v7(), stop.clone()));
    eventually("the subscription", DEADLINE, async || outbox.listening_session().await).await?;
    relay.has_been_idle(idle_scans + 1).await?;
    Ok(stop.drop_guard())
}

impl Outbox {
    /// The process id of the session that has executed `LISTEN`.
    async fn listening_session(&self) -> anyhow::Result<Option<i32>> {
        let sql =
            "select pid from pg_stat_activity where query ilike 'listen%' and datname = current_database()";
        Ok(sqlx::query_scalar(sql).fetch_optional(&self.pool).await?)
    }

    /// Calls the SQL function with which other writers wake the relays.
    async fn wake_from_sql(&self) -> anyhow::Result<()> {
        sqlx::query("select outbox_wake()").execute(&self.pool).await?;
        Ok(())
    }
}

#[tokio::test]
async fn commit_in_this_process_wakes_the_relay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let relay = RunningRelay::start(&outbox, NEVER, &wake).await?;
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
async fn commit_in_another_instance_wakes_the_relay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let (here, there) = (Wake::new(), Wake::new());
    let relay = RunningRelay::start(&outbox, NEVER, &here).await?;
    let _listener = listen(&outbox.pool, &outbox, &relay, here).await?;
    let stop = CancellationToken::new();
    let _notifier = stop.clone().drop_guard();
    tokio::spawn(outbox::notify_other_instances(outbox.pool.clone(), there.clone(), Uuid::now_v7(), stop));
    relay
        .publishes_after(&outbox, async || {
            there.after_commit();
            Ok(())
        })
        .await
}

#[tokio::test]
async fn outbox_wake_in_sql_wakes_the_relay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let relay = RunningRelay::start(&outbox, NEVER, &wake).await?;
    let _listener = listen(&outbox.pool, &outbox, &relay, wake).await?;
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await
}

#[tokio::test]
async fn listener_that_lost_its_connection_wakes_the_relay_and_subscribes_again() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let relay = RunningRelay::start(&outbox, NEVER, &wake).await?;
    // The listener's pool has one connection. The test gets it next, and keeps the listener disconnected with it.
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect_with((*outbox.pool.connect_options()).clone()).await?;
    let _listener = listen(&pool, &outbox, &relay, wake).await?;
    let acquiring = tokio::spawn({
        let pool = pool.clone();
        async move { pool.acquire().await }
    });
    let session = outbox.listening_session().await?;
    sqlx::query("select pg_terminate_backend($1)").bind(session).execute(&outbox.pool).await?;
    let only_connection = acquiring.await??;

    // No notification is sent for this commit, and the disconnected listener would miss one. It wakes the relay all the
    // same when it has subscribed again.
    let missed = outbox.append(Uuid::now_v7(), 1).await?;
    drop(only_connection);
    outbox.is_published(missed).await?;
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await
}

/// Forwards connections to `target`. Until `silent` is set; then nothing of the open ones arrives any more, and only new
/// ones work.
async fn forwarder(target: String, silent: CancellationToken) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (target, was_silent, silent) = (target.clone(), silent.is_cancelled(), silent.clone());
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(target).await else { return };
                let forwarding = copy_bidirectional(&mut client, &mut server);
                if was_silent {
                    let _ = forwarding.await;
                } else if silent.run_until_cancelled(forwarding).await.is_none() {
                    // Open, and not read any more: what an interrupted network looks like.
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    Ok(port)
}

/// PostgreSQL does not tell a listener that its notifications no longer arrive, and the connection looks idle.
#[tokio::test]
async fn listener_whose_connection_fell_silent_subscribes_again() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let wake = Wake::new();
    let relay = RunningRelay::start(&outbox, NEVER, &wake).await?;
    let direct = outbox.pool.connect_options();
    let silent = CancellationToken::new();
    let target = format!("{}:{}", direct.get_host(), direct.get_port());
    let port = forwarder(target, silent.clone()).await?;
    let pool = PgPool::connect_with((*direct).clone().host("127.0.0.1").port(port)).await?;
    let _listener = listen(&pool, &outbox, &relay, wake).await?;
    silent.cancel();
    let missed = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.wake_from_sql().await?;
    eventually("the listener to subscribe again, and the relay to publish", RENEWAL_DEADLINE, async || {
        Ok(outbox.state(missed).await?.published.then_some(()))
    })
    .await?;
    relay.publishes_after(&outbox, async || outbox.wake_from_sql().await).await
}
