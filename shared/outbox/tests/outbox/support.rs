//! An outbox in its own database, and a broker that returns the outcomes that a test asks for.
//!
//! `shared/rabbitmq` tests the real broker. Here only the outcomes matter, and a real broker does not return all of them
//! on demand.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use database::{Pool, PoolKind};
use events::{NewEvent, OrderConfirmed, TraceContext, lane};
use messaging::{
    BrokerUnavailable, Outgoing, PublishOutcome, Publisher, Refusal, Relay, RelayOptions,
    replay::ReplayPolicy,
};
use outbox::PostgresStore;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::{TestDatabase, eventually};
use tokio::sync::Notify;
use uuid::Uuid;

/// How long a test waits for any condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// An interval that does not pass during a test.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

/// The policy of a service that replays events of the last two weeks.
pub(crate) const TWO_WEEKS: ReplayPolicy =
    ReplayPolicy { max_age: Duration::from_secs(14 * 86_400), force: false };

pub(crate) struct Outbox {
    pub(crate) pool: Pool,
    database: TestDatabase,
}

/// The columns of an event that the relay writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EventState {
    pub(crate) published: bool,
    pub(crate) attempts: i16,
    pub(crate) parked: bool,
}

impl EventState {
    pub(crate) const PENDING: Self = Self { published: false, attempts: 0, parked: false };
}

impl Outbox {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        Self::on(testbed::database().await?).await
    }

    pub(crate) async fn on(database: TestDatabase) -> anyhow::Result<Self> {
        let pool = pool(&database.url("orders"), 10, PoolKind::Transactions);
        outbox::MIGRATIONS.run(&mut *pool.acquire().await?).await?;
        Ok(Self { pool, database })
    }

    /// Appends and commits an event as a service does. Returns its id.
    pub(crate) async fn append(&self, aggregate: Uuid, version: i32) -> anyhow::Result<Uuid> {
        let event = event(aggregate, version);
        let mut transaction = self.pool.begin().await?;
        outbox::append(&mut transaction, std::slice::from_ref(&event)).await?;
        transaction.commit().await?;
        Ok(event.event_id)
    }

    pub(crate) fn url(&self) -> String {
        self.database.url("orders")
    }

    /// How many connections the server accepts for this database: none of the tests' logins connects again with 0, and
    /// -1 means any number.
    pub(crate) async fn limit_connections(&self, limit: i8) -> anyhow::Result<()> {
        let mut admin = PgConnection::connect(&self.database.admin_url()).await?;
        let sql = format!("alter database \"{}\" connection limit {limit}", self.database.name());
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await?;
        Ok(())
    }

    /// The pool of a service's relay.
    pub(crate) fn relay_pool(&self) -> Pool {
        pool(&self.url(), 2, PoolKind::AsyncCommit)
    }

    /// A relay that claims all lanes in one step, so that the result does not depend on where its search begins.
    pub(crate) fn relay(&self, broker: &ScriptedBroker) -> Relay<ScriptedBroker, PostgresStore> {
        self.relay_with_full_scan(broker, RelayOptions::default().full_scan)
    }

    pub(crate) fn relay_with_full_scan(
        &self,
        broker: &ScriptedBroker,
        full_scan: Duration,
    ) -> Relay<ScriptedBroker, PostgresStore> {
        relay_over(&self.pool, broker, full_scan)
    }

    /// Inserts events that were published `age` ago, an interval in PostgreSQL's notation.
    pub(crate) async fn insert_published(&self, events: i64, age: &str) -> anyhow::Result<()> {
        let sql = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                       schema_version, payload, lane, created_at, published_at)
                   select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16,
                          now() - $2::text::interval, now() - $2::text::interval
                   from generate_series(1, $1) as number";
        let mut transaction = self.pool.begin().await?;
        // A busy machine may need longer for many.
        sqlx::query("set local statement_timeout = 0").execute(&mut *transaction).await?;
        sqlx::query(sql).bind(events).bind(age).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    /// Ends the back-off of all events, so that a test does not wait for it.
    pub(crate) async fn end_back_off(&self) -> anyhow::Result<()> {
        sqlx::query("update outbox set available_at = clock_timestamp()").execute(&self.pool).await?;
        Ok(())
    }

    /// Counts all events, published or not.
    pub(crate) async fn count(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from outbox").fetch_one(&self.pool).await?)
    }

    pub(crate) async fn state(&self, event_id: Uuid) -> anyhow::Result<EventState> {
        let sql = "select published_at is not null, attempts, parked_at is not null from outbox where event_id = $1";
        let (published, attempts, parked) = sqlx::query_as(sql).bind(event_id).fetch_one(&self.pool).await?;
        Ok(EventState { published, attempts, parked })
    }

    pub(crate) async fn is_published(&self, event_id: Uuid) -> anyhow::Result<()> {
        eventually("the event to be published", DEADLINE, async || {
            Ok(self.state(event_id).await?.published.then_some(()))
        })
        .await
    }
}

pub(crate) fn pool(url: &str, connections: u32, kind: PoolKind) -> Pool {
    Pool::new(&url.parse().unwrap(), "test", connections, kind)
}

/// A relay over this pool that claims all lanes in one step.
pub(crate) fn relay_over(
    pool: &Pool,
    broker: &ScriptedBroker,
    full_scan: Duration,
) -> Relay<ScriptedBroker, PostgresStore> {
    let options = RelayOptions { lanes: 16, full_scan, ..RelayOptions::default() };
    outbox::relay(pool.clone(), broker.clone(), options)
}

pub(crate) fn event(aggregate: Uuid, version: i32) -> NewEvent {
    let body = OrderConfirmed { order_id: aggregate };
    NewEvent::of(aggregate, version, &TraceContext::root(), &body).unwrap()
}

/// The id of a new aggregate in this lane.
pub(crate) fn aggregate_in_lane(wanted: i16) -> Uuid {
    std::iter::repeat_with(Uuid::now_v7).find(|id| lane(*id) == wanted).unwrap()
}

/// Moves the clock of the relay forward. The clock is paused only here: while a test waits for the database, it runs.
pub(crate) async fn advance_clock(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

type Script = Box<dyn FnMut(&Outgoing) -> PublishOutcome + Send>;

/// A broker whose script decides the outcome of each message. All clones are one broker.
#[derive(Clone)]
pub(crate) struct ScriptedBroker(Arc<State>);

struct State {
    script: Mutex<Script>,
    seen: Mutex<Vec<Uuid>>,
    unavailable: Mutex<bool>,
    /// The next hold, and after how many messages it comes.
    hold: Mutex<Option<(usize, Hold)>>,
}

/// Stops a publish in the middle, between sending and confirming.
#[derive(Clone, Default)]
pub(crate) struct Hold {
    started: Arc<Notify>,
    released: Arc<Notify>,
}

impl Hold {
    /// Waits until a relay publishes.
    pub(crate) async fn started(&self) -> anyhow::Result<()> {
        Ok(tokio::time::timeout(DEADLINE, self.started.notified()).await?)
    }

    /// Lets the relay go on.
    pub(crate) fn release(&self) {
        self.released.notify_one();
    }
}

impl ScriptedBroker {
    pub(crate) fn new(script: impl FnMut(&Outgoing) -> PublishOutcome + Send + 'static) -> Self {
        Self(Arc::new(State {
            script: Mutex::new(Box::new(script)),
            seen: Mutex::default(),
            unavailable: Mutex::default(),
            hold: Mutex::default(),
        }))
    }

    pub(crate) fn that_confirms() -> Self {
        Self::new(|_| PublishOutcome::Confirmed)
    }

    /// Refuses one event, and confirms all others.
    pub(crate) fn that_refuses(event: Uuid, refusal: Refusal) -> Self {
        Self::new(move |message| match message.id == event {
            true => PublishOutcome::Refused(refusal),
            false => PublishOutcome::Confirmed,
        })
    }

    pub(crate) fn set_unavailable(&self, unavailable: bool) {
        *self.0.unavailable.lock().unwrap() = unavailable;
    }

    /// Holds the next publish until it is released.
    pub(crate) fn hold(&self) -> Hold {
        self.hold_after(0)
    }

    /// Holds the first publish after so many messages until it is released.
    pub(crate) fn hold_after(&self, messages: usize) -> Hold {
        let hold = Hold::default();
        *self.0.hold.lock().unwrap() = Some((messages, hold.clone()));
        hold
    }

    /// The ids of all messages that were published, in order and with duplicates.
    pub(crate) fn seen(&self) -> Vec<Uuid> {
        self.0.seen.lock().unwrap().clone()
    }
}

impl Publisher for ScriptedBroker {
    async fn ready(&mut self) -> Result<(), BrokerUnavailable> {
        let unavailable = *self.0.unavailable.lock().unwrap();
        if unavailable { Err(BrokerUnavailable("set by the test".into())) } else { Ok(()) }
    }

    async fn publish(&mut self, batch: &[&Outgoing]) -> Vec<PublishOutcome> {
        let before = self.0.seen.lock().unwrap().len();
        let hold = self.0.hold.lock().unwrap().take_if(|(messages, _)| before >= *messages);
        self.0.seen.lock().unwrap().extend(batch.iter().map(|message| message.id));
        if let Some((_, hold)) = hold {
            hold.started.notify_one();
            hold.released.notified().await;
        }
        batch.iter().map(|message| (self.0.script.lock().unwrap())(message)).collect()
    }
}
