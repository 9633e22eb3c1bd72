//! The relay that reads the write-ahead log, against a real PostgreSQL and a scripted broker.

use std::time::Duration;

use anyhow::Context as _;
use database::DatabaseHealth;
use messaging::{PublishOutcome, Refusal, Relay, RelayOptions, Step, Wake};
use outbox::LogStore;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{Postgres, eventually, hang_commits, release_commits, set_standby, waits_for_standby};
use tokio::{sync::OnceCell, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{DEADLINE, EventState, NEVER, Outbox, ScriptedBroker, aggregate_in_lane, event};

/// A server whose log can be decoded. Each database takes a slot.
static SERVER: OnceCell<Postgres> = OnceCell::const_new();

async fn logical_server() -> anyhow::Result<Postgres> {
    let server = Postgres::private().await?;
    server
        .set(&[("wal_level", "logical"), ("max_replication_slots", "50"), ("max_wal_senders", "50")])
        .await?;
    Ok(server)
}

async fn logical_outbox() -> anyhow::Result<Outbox> {
    outbox_on(SERVER.get_or_try_init(logical_server).await?).await
}

async fn outbox_on(server: &Postgres) -> anyhow::Result<Outbox> {
    let database = testbed::database_on(&server.admin_url("postgres")).await?;
    testbed::allow_log_relay(&database.admin_url()).await?;
    Outbox::on(database).await
}

/// A log relay in a task. Dropped, it dies as in a crash: nothing is finished.
struct RunningRelay(JoinHandle<()>, CancellationToken);

impl RunningRelay {
    /// With a claim from the table every `table_interval`.
    fn start(outbox: &Outbox, broker: &ScriptedBroker, table_interval: Duration) -> Self {
        let store = LogStore::new(outbox.relay_pool(), table_interval);
        let options = RelayOptions { poll: Duration::from_millis(200), ..RelayOptions::default() };
        let stop = CancellationToken::new();
        let relay = Relay::new(store, broker.clone(), options).run(Wake::new(), stop.clone());
        Self(tokio::spawn(relay), stop)
    }

    /// Starts a relay, and waits until it reads the log.
    async fn reading(
        outbox: &Outbox,
        broker: &ScriptedBroker,
        table_interval: Duration,
    ) -> anyhow::Result<Self> {
        let relay = Self::start(outbox, broker, table_interval);
        outbox.log_is_read(true).await?;
        Ok(relay)
    }

    /// Ends the relay, and waits until the server has noticed.
    async fn crash(self, outbox: &Outbox) -> anyhow::Result<()> {
        drop(self);
        outbox.log_is_read(false).await
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.1.cancel();
        Ok(tokio::time::timeout(DEADLINE, &mut self.0).await??)
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An outbox, a broker that confirms, and a relay that reads the log.
async fn reading_outbox(table_interval: Duration) -> anyhow::Result<(Outbox, ScriptedBroker, RunningRelay)> {
    let (outbox, broker) = (logical_outbox().await?, ScriptedBroker::that_confirms());
    let relay = RunningRelay::reading(&outbox, &broker, table_interval).await?;
    Ok((outbox, broker, relay))
}

const OFTEN: Duration = Duration::from_millis(100);

impl Outbox {
    async fn log_is_read(&self, expected: bool) -> anyhow::Result<()> {
        eventually("the slot to be held, or free", DEADLINE, async || {
            let sql = "select coalesce((select active from outbox_log_state()), false)";
            let active: bool = sqlx::query_scalar(sql).fetch_one(&self.pool).await?;
            Ok((active == expected).then_some(()))
        })
        .await
    }

    /// Waits until the log is acknowledged up to where it ends now. Other tests may write into it meanwhile.
    async fn log_is_acknowledged(&self) -> anyhow::Result<()> {
        let end: String =
            sqlx::query_scalar("select pg_current_wal_flush_lsn()::text").fetch_one(&self.pool).await?;
        eventually("the log to be acknowledged", DEADLINE, async || {
            let sql = "select confirmed_flush_lsn >= $1::pg_lsn
                       from pg_replication_slots join outbox_log_slot on slot_name = slot";
            let is_acknowledged: bool = sqlx::query_scalar(sql).bind(&end).fetch_one(&self.pool).await?;
            Ok(is_acknowledged.then_some(()))
        })
        .await
    }

    async fn pending(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from outbox where published_at is null")
            .fetch_one(&self.pool)
            .await?)
    }

    async fn nothing_is_pending(&self) -> anyhow::Result<()> {
        eventually("no event to be pending", DEADLINE * 3, async || {
            Ok((self.pending().await? == 0).then_some(()))
        })
        .await
    }

    /// Checks that a relay halts, and that the state of the slot says why.
    async fn relay_halts_because(&self, broker: &ScriptedBroker, reason: &str) -> anyhow::Result<()> {
        let halted = self.halted().await?;
        assert!(halted.as_ref().is_some_and(|halted| halted.contains(reason)), "{halted:?}");
        self.relay_halts(broker).await
    }

    async fn relay_halts(&self, broker: &ScriptedBroker) -> anyhow::Result<()> {
        let store = LogStore::new(self.relay_pool(), OFTEN);
        let error = Relay::new(store, broker.clone(), RelayOptions::default()).step().await.unwrap_err();
        assert!(error.to_string().contains("has halted"), "{error}");
        assert!(broker.seen().is_empty(), "a halted relay has published");
        Ok(())
    }

    async fn halted(&self) -> anyhow::Result<Option<String>> {
        Ok(sqlx::query_scalar("select halted from outbox_log_state()").fetch_one(&self.pool).await?)
    }
}

#[tokio::test]
async fn events_are_published_in_the_order_of_their_commits() -> anyhow::Result<()> {
    let (outbox, broker, _relay) = reading_outbox(NEVER).await?;
    let late = event(Uuid::now_v7(), 1);
    let mut slow = outbox.pool.begin().await?;
    outbox::append(&mut slow, std::slice::from_ref(&late)).await?;
    let early = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(early).await?;
    let mut rolled_back = outbox.pool.begin().await?;
    outbox::append(&mut rolled_back, &[event(Uuid::now_v7(), 1)]).await?;
    rolled_back.rollback().await?;
    slow.commit().await?;
    outbox.is_published(late.event_id).await?;
    assert_eq!(broker.seen(), [early, late.event_id]);
    Ok(())
}

#[tokio::test]
async fn events_from_before_the_slot_are_published_before_later_ones_of_their_aggregate() -> anyhow::Result<()>
{
    let outbox = logical_outbox().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let hold = broker.hold();
    let _relay = RunningRelay::start(&outbox, &broker, OFTEN);
    hold.started().await?;
    let second = outbox.append(order, 2).await?;
    hold.release();
    outbox.is_published(second).await?;
    assert_eq!(broker.seen(), [first, second]);
    Ok(())
}

/// The slot's creation waits for all transactions of the server.
#[tokio::test]
async fn events_are_published_from_the_table_while_the_slot_cannot_be_created() -> anyhow::Result<()> {
    // Others would wait for the transaction too.
    let server = logical_server().await?;
    let outbox = outbox_on(&server).await?;
    let mut long = outbox.pool.begin().await?;
    sqlx::query("select pg_current_xact_id()").execute(&mut *long).await?;
    let event = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let _relay = RunningRelay::start(&outbox, &broker, NEVER);
    outbox.is_published(event).await?;
    long.rollback().await?;
    outbox.log_is_read(true).await
}

#[tokio::test]
async fn relay_that_dies_before_its_marks_publishes_again_and_one_that_dies_after_them_does_not()
-> anyhow::Result<()> {
    let (outbox, broker, relay) = reading_outbox(NEVER).await?;
    let hold = broker.hold();
    let event = outbox.append(Uuid::now_v7(), 1).await?;
    hold.started().await?;
    relay.crash(&outbox).await?;
    let relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    outbox.is_published(event).await?;
    assert_eq!(broker.seen(), [event, event]);

    // The server learns what is done once a second: here it has not learned of the mark.
    relay.crash(&outbox).await?;
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    let next = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(next).await?;
    assert_eq!(broker.seen(), [event, event, next]);
    Ok(())
}

/// After a restore in place the slot and its log remain, and the sequence gives the same numbers again.
#[tokio::test]
async fn event_whose_number_the_log_has_given_to_another_is_published_and_the_other_is_not()
-> anyhow::Result<()> {
    let (outbox, broker, _relay) = reading_outbox(NEVER).await?;
    let hold = broker.hold();
    let before = outbox.append(Uuid::now_v7(), 1).await?;
    hold.started().await?;
    let order = Uuid::now_v7();
    for version in 1..=3 {
        outbox.append(order, version).await?;
    }
    let restore =
        "delete from outbox where seq > 1; select setval(pg_get_serial_sequence('outbox', 'seq'), 1)";
    sqlx::raw_sql(restore).execute(&mut *outbox.pool.acquire().await?).await?;
    assert_eq!(outbox.count().await?, 1);
    let (order, mut expected) = (Uuid::now_v7(), vec![before]);
    for version in 1..=3 {
        expected.push(outbox.append(order, version).await?);
    }
    hold.release();
    outbox.nothing_is_pending().await?;
    assert_eq!(broker.seen(), expected);
    Ok(())
}

/// The log has a commit before its waiting for the standby ends, and before any reader sees it.
#[tokio::test]
async fn event_that_the_log_has_before_its_commit_is_visible_waits_for_it() -> anyhow::Result<()> {
    let server = logical_server().await?;
    let admin = server.admin_url("postgres");
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    let store = LogStore::new(outbox.relay_pool(), NEVER);
    let mut relay = Relay::new(store, broker.clone(), RelayOptions::default());
    for _ in 0..2 {
        assert_eq!(relay.step().await?, Step::Idle);
    }
    hang_commits(&admin).await?;
    let mut writing = std::pin::pin!(outbox.append(Uuid::now_v7(), 1));
    waits_for_standby(&admin, writing.as_mut()).await?;
    steps_to(&mut relay, Step::Busy).await?;
    assert!(broker.seen().is_empty(), "published before the standby had it");
    release_commits(&admin).await?;
    steps_to(&mut relay, Step::PublishedAll(1)).await?;
    assert_eq!(broker.seen(), [writing.await?]);
    Ok(())
}

async fn steps_to(relay: &mut Relay<ScriptedBroker, LogStore>, expected: Step) -> anyhow::Result<()> {
    tokio::time::timeout(DEADLINE, async {
        while relay.step().await? != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    })
    .await
    .with_context(|| format!("no step was {expected:?}"))?
}

/// A frozen relay, or a slow one that polls, holds its lanes for up to 30 s.
#[tokio::test]
async fn events_of_a_lane_that_another_relay_holds_wait_and_those_of_other_lanes_do_not() -> anyhow::Result<()>
{
    let (outbox, broker, _relay) = reading_outbox(NEVER).await?;
    let mut holder = outbox.pool.begin().await?;
    sqlx::query("select from outbox_lanes where lane = 3 for update").execute(&mut *holder).await?;
    let (held, free) = (aggregate_in_lane(3), aggregate_in_lane(4));
    let first = outbox.append(held, 1).await?;
    let second = outbox.append(held, 2).await?;
    let other = outbox.append(free, 1).await?;
    outbox.is_published(other).await?;
    assert_eq!(broker.seen(), [other]);
    holder.rollback().await?;
    outbox.is_published(second).await?;
    assert_eq!(broker.seen(), [other, first, second]);
    Ok(())
}

#[tokio::test]
async fn refused_event_is_passed_and_holds_back_its_own_aggregate_only() -> anyhow::Result<()> {
    let outbox = logical_outbox().await?;
    let order = Uuid::now_v7();
    let mut refusals = 1;
    let broker = ScriptedBroker::new(move |message| {
        let is_first = message.body.windows(12).any(|part| part == br#""sequence":1"#);
        if is_first
            && message.body.windows(36).any(|part| part == order.to_string().as_bytes())
            && refusals > 0
        {
            refusals -= 1;
            return PublishOutcome::Refused(Refusal::Unroutable);
        }
        PublishOutcome::Confirmed
    });
    let relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    let first = outbox.append(order, 1).await?;
    let second = outbox.append(order, 2).await?;
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(other).await?;
    assert_eq!(outbox.state(first).await?, EventState { published: false, attempts: 1, parked: false });
    assert_eq!(outbox.state(second).await?, EventState::PENDING);
    // The log is behind them: a relay that starts now gets them from the table alone, and in their order.
    outbox.log_is_acknowledged().await?;
    relay.crash(&outbox).await?;
    let third = outbox.append(order, 3).await?;
    outbox.end_back_off().await?;
    let _relay = RunningRelay::reading(&outbox, &broker, OFTEN).await?;
    outbox.is_published(third).await?;
    let mut seen = broker.seen();
    seen.retain(|id| *id != other);
    assert_eq!(seen, [first, first, second, third]);
    Ok(())
}

#[tokio::test]
async fn events_wait_in_the_log_for_a_broker_that_is_away_and_cost_no_attempt() -> anyhow::Result<()> {
    let outbox = logical_outbox().await?;
    let mut unknown = 3;
    let broker = ScriptedBroker::new(move |_| {
        unknown -= 1;
        if unknown >= 0 { PublishOutcome::Unknown } else { PublishOutcome::Confirmed }
    });
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    broker.set_unavailable(true);
    let (order, mut ids) = (Uuid::now_v7(), vec![]);
    for version in 1..=20 {
        ids.push(outbox.append(order, version).await?);
    }
    assert_eq!(outbox.pending().await?, 20);
    broker.set_unavailable(false);
    outbox.nothing_is_pending().await?;
    assert_eq!(outbox.state(ids[0]).await?.attempts, 0);
    // Its first is repeated until it is confirmed, and no later one overtakes it.
    assert_eq!(broker.seen()[3..], ids);
    Ok(())
}

#[tokio::test]
async fn second_relay_takes_over_when_the_first_has_stopped_or_has_lost_its_broker() -> anyhow::Result<()> {
    for stops in [true, false] {
        let (outbox, first, holder) = reading_outbox(NEVER).await?;
        let second = ScriptedBroker::that_confirms();
        let _waiting = RunningRelay::start(&outbox, &second, NEVER);
        let one = outbox.append(Uuid::now_v7(), 1).await?;
        outbox.is_published(one).await?;
        let _without_broker = if stops {
            holder.stop().await?;
            None
        } else {
            first.set_unavailable(true);
            Some(holder)
        };
        let two = outbox.append(Uuid::now_v7(), 1).await?;
        outbox.is_published(two).await?;
        assert_eq!((first.seen(), second.seen()), (vec![one], vec![two]));
    }
    Ok(())
}

#[tokio::test]
async fn crash_of_the_database_loses_nothing() -> anyhow::Result<()> {
    let server = logical_server().await?;
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    let _relay = RunningRelay::reading(&outbox, &broker, OFTEN).await?;
    let before = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(before).await?;
    server.kill().await?;
    server.start().await?;
    // The pool's connections are dead.
    let after = eventually("an event to be written", DEADLINE, async || {
        Ok(Some(outbox.append(Uuid::now_v7(), 1).await?))
    })
    .await?;
    outbox.is_published(after).await?;
    outbox.nothing_is_pending().await
}

#[tokio::test]
async fn log_that_only_others_write_is_acknowledged() -> anyhow::Result<()> {
    let (outbox, _broker, _relay) = reading_outbox(NEVER).await?;
    sqlx::query("create table other as select generate_series(1, 100000)").execute(&outbox.pool).await?;
    outbox.log_is_acknowledged().await
}

#[tokio::test]
async fn transaction_with_100_000_events_is_published_although_its_relay_dies_in_the_middle()
-> anyhow::Result<()> {
    // Others could not create their slots meanwhile.
    let server = logical_server().await?;
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    let relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    let hold = broker.hold_after(10_000);
    let mut transaction = outbox.pool.begin().await?;
    sqlx::query("set local statement_timeout = 0").execute(&mut *transaction).await?;
    sqlx::query(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, lane)
         select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16
         from generate_series(1, 100000) as number",
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    hold.started().await?;
    relay.crash(&outbox).await?;
    let published = 100_000 - outbox.pending().await?;
    assert!((10_000..100_000).contains(&published), "{published} were published");
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    outbox.nothing_is_pending().await?;
    // What was in flight when it died is published again, and nothing else.
    let copies = broker.seen().len() - 100_000;
    assert!(copies <= RelayOptions::default().batch.into(), "{copies} were published again");
    Ok(())
}

/// As a restore in place does: the table is another, and the publication does not have it.
#[tokio::test]
async fn relay_publishes_a_table_that_the_publication_has_lost() -> anyhow::Result<()> {
    let (outbox, broker, relay) = reading_outbox(NEVER).await?;
    relay.crash(&outbox).await?;
    sqlx::query("alter publication orders_outbox drop table outbox").execute(&outbox.pool).await?;
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    let event = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(event).await?;
    assert_eq!(broker.seen(), [event]);
    Ok(())
}

/// PostgreSQL looks the publication up as it was at each change, so what was written while there was none is never decoded.
#[tokio::test]
async fn dropped_publication_halts_the_relay_until_an_operator_drops_the_slot() -> anyhow::Result<()> {
    let (outbox, broker, relay) = reading_outbox(OFTEN).await?;
    relay.crash(&outbox).await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    let sql = |sql| sqlx::query(sql).execute(&outbox.pool);
    sql("drop publication orders_outbox").await?;
    let second = outbox.append(order, 2).await?;
    for another in [false, true] {
        if another {
            sql("create publication orders_outbox for table outbox with (publish = 'insert')").await?;
        }
        outbox.relay_halts_because(&broker, "publication was dropped").await?;
    }
    sql("select outbox_log_drop()").await?;
    let _relay = RunningRelay::reading(&outbox, &broker, OFTEN).await?;
    let third = outbox.append(order, 3).await?;
    outbox.is_published(third).await?;
    assert_eq!(broker.seen(), [first, second, third]);
    Ok(())
}

#[tokio::test]
async fn events_that_an_altered_publication_leaves_out_are_published_from_the_table() -> anyhow::Result<()> {
    let (outbox, broker, _relay) = reading_outbox(OFTEN).await?;
    let mut published = vec![];
    for alteration in ["drop table outbox", "add table outbox", "set (publish = 'delete')"] {
        let sql = format!("alter publication orders_outbox {alteration}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *outbox.pool.acquire().await?).await?;
        let event = outbox.append(Uuid::now_v7(), 1).await?;
        outbox.is_published(event).await?;
        published.push(event);
    }
    assert_eq!(broker.seen(), published);
    Ok(())
}

#[tokio::test]
async fn relay_does_not_open_the_log_while_health_says_that_commits_hang() -> anyhow::Result<()> {
    let server = logical_server().await?;
    let admin = server.admin_url("postgres");
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    RunningRelay::reading(&outbox, &broker, NEVER).await?.stop().await?;
    outbox.log_is_read(false).await?;
    let (health, stop) = (DatabaseHealth::default(), CancellationToken::new());
    health.set_prepared();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(health.clone().watch(outbox.url().parse().map_err(anyhow::Error::msg)?, stop));
    let probe = health.probe();
    hang_commits(&admin).await?;
    let mut writing = std::pin::pin!(outbox.append(Uuid::now_v7(), 1));
    tokio::select! {
        written = &mut writing => anyhow::bail!("the commit did not wait for the standby: {written:?}"),
        hang = eventually("health to name the standby", DEADLINE, async || {
            Ok(probe().is_err_and(|reason| reason.contains("standby")).then_some(()))
        }) => hang?,
    }
    let store = LogStore::new(outbox.relay_pool().with_health(health.clone()), OFTEN);
    let mut relay = Relay::new(store, broker.clone(), RelayOptions::default());
    let failed = relay.step().await;
    assert!(failed.is_err(), "{failed:?}");
    outbox.log_is_read(false).await?;
    assert!(broker.seen().is_empty(), "an event was claimed");

    release_commits(&admin).await?;
    let event = writing.await?;
    eventually("health to be well again", DEADLINE, async || Ok(probe().is_ok().then_some(()))).await?;
    steps_to(&mut relay, Step::Published(1)).await?;
    assert_eq!(broker.seen(), [event]);
    Ok(())
}

#[tokio::test]
async fn event_that_cannot_be_read_from_the_log_is_published_from_the_table() -> anyhow::Result<()> {
    let (outbox, broker, _relay) = reading_outbox(OFTEN).await?;
    let publish = async |columns: &str| {
        let sql = format!("alter publication orders_outbox set table outbox ({columns})");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *outbox.pool.acquire().await?).await
    };
    publish("seq, event_id").await?;
    let unreadable = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(unreadable).await?;
    outbox.log_is_acknowledged().await?;
    publish("seq, event_id, aggregate_id, event_type, payload, headers, lane").await?;
    let next = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(next).await?;
    assert_eq!(broker.seen(), [unreadable, next]);
    Ok(())
}

#[tokio::test]
async fn headers_that_cannot_be_read_cost_the_trace_only() -> anyhow::Result<()> {
    let (outbox, _broker, _relay) = reading_outbox(NEVER).await?;
    // A number that PostgreSQL takes, and the relay's parser does not.
    let insert = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                      payload, lane, headers)
                  values (gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', 0, '{\"number\": 1e400}')
                  returning event_id";
    let event: Uuid = sqlx::query_scalar(insert).fetch_one(&outbox.pool).await?;
    outbox.is_published(event).await?;
    outbox.log_is_acknowledged().await
}

#[tokio::test]
async fn lost_slot_halts_the_relay_until_an_operator_drops_it() -> anyhow::Result<()> {
    let server = logical_server().await?;
    server.set(&[("max_slot_wal_keep_size", "1MB"), ("max_wal_size", "32MB")]).await?;
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    RunningRelay::reading(&outbox, &broker, OFTEN).await?.crash(&outbox).await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    // More log than the slot may keep, and a checkpoint, which removes it.
    let mut admin = PgConnection::connect(&server.admin_url("postgres")).await?;
    for _ in 0..4 {
        sqlx::raw_sql("select pg_logical_emit_message(false, '', repeat('x', 1000000)), pg_switch_wal()")
            .execute(&mut admin)
            .await?;
    }
    sqlx::raw_sql("checkpoint").execute(&mut admin).await?;
    outbox.relay_halts_because(&broker, "is lost").await?;

    let second = outbox.append(order, 2).await?;
    sqlx::query("select outbox_log_drop()").execute(&outbox.pool).await?;
    let _relay = RunningRelay::start(&outbox, &broker, OFTEN);
    outbox.is_published(second).await?;
    assert_eq!(broker.seen(), [first, second]);
    Ok(())
}

/// Its connection would be the standby that commits wait for.
#[tokio::test]
async fn setting_that_makes_any_connection_a_standby_halts_the_relay() -> anyhow::Result<()> {
    let server = logical_server().await?;
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    // First a standby that does not exist: when the server obeys that setting, it has commits wait for the next one from the
    // beginning.
    let admin = server.admin_url("postgres");
    hang_commits(&admin).await?;
    set_standby(&admin, "= 'FIRST 1 (*)'").await?;
    eventually("the state to name the setting", DEADLINE, async || {
        let halted = outbox.halted().await?;
        Ok(halted.is_some_and(|reason| reason.contains("synchronous_standby_names")).then_some(()))
    })
    .await?;
    // The relay that reads already stops at the first event.
    tokio::select! {
        written = outbox.append(Uuid::now_v7(), 1) => anyhow::bail!("no standby has this: {written:?}"),
        free = outbox.log_is_read(false) => free?,
    }
    outbox.relay_halts(&broker).await
}

#[tokio::test]
async fn relay_creates_no_slot_while_any_connection_is_a_standby() -> anyhow::Result<()> {
    let server = logical_server().await?;
    let admin = server.admin_url("postgres");
    let outbox = outbox_on(&server).await?;
    let broker = ScriptedBroker::that_confirms();
    set_standby(&admin, "= 'FIRST 1 (*)'").await?;
    outbox.relay_halts(&broker).await?;
    let slots: i64 =
        sqlx::query_scalar("select count(*) from pg_replication_slots").fetch_one(&outbox.pool).await?;
    assert_eq!(slots, 0);
    release_commits(&admin).await?;
    let _relay = RunningRelay::reading(&outbox, &broker, NEVER).await?;
    let event = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.is_published(event).await?;
    Ok(())
}

#[tokio::test]
async fn slot_of_another_database_halts_the_relay_and_is_never_dropped() -> anyhow::Result<()> {
    let (outbox, broker, relay) = reading_outbox(OFTEN).await?;
    relay.crash(&outbox).await?;
    sqlx::query("select outbox_log_drop()").execute(&outbox.pool).await?;
    let server = SERVER.get().context("the server runs")?;
    let mut other = PgConnection::connect(&server.admin_url("postgres")).await?;
    let create = "select pg_create_logical_replication_slot('elsewhere', 'pgoutput')";
    sqlx::raw_sql(create).execute(&mut other).await?;
    let copy = "insert into outbox_log_slot (slot, system_identifier)
                select 'elsewhere', system_identifier from pg_control_system()";
    sqlx::query(copy).execute(&outbox.pool).await?;
    outbox.relay_halts_because(&broker, "another database").await?;
    sqlx::query("select outbox_log_drop()").execute(&outbox.pool).await?;
    sqlx::raw_sql("select pg_drop_replication_slot('elsewhere')").execute(&mut other).await?;
    Ok(())
}

#[tokio::test]
async fn slot_that_is_missing_or_on_another_server_halts_the_relay() -> anyhow::Result<()> {
    let (outbox, broker, relay) = reading_outbox(OFTEN).await?;
    relay.crash(&outbox).await?;
    for (fault, reason) in [
        ("update outbox_log_slot set system_identifier = 1", "another server"),
        (
            "update outbox_log_slot set system_identifier = (select system_identifier from pg_control_system());
             select pg_drop_replication_slot(slot) from outbox_log_slot",
            "does not exist",
        ),
    ] {
        sqlx::raw_sql(AssertSqlSafe(fault)).execute(&mut *outbox.pool.acquire().await?).await?;
        outbox.relay_halts_because(&broker, reason).await?;
    }
    Ok(())
}
