//! A real outbox in a database of its own, and a broker that does what the test says. The real broker's behaviour is
//! tested in `shared/broker`; here it is the answers that matter, and some of them no broker gives on demand.

use std::sync::{Arc, Mutex};

use events::{
    Draft, TraceContext,
    transport::{Away, Outcome, Outgoing, Publisher},
};
use outbox::{Relay, RelayOptions};
use serde_json::json;
use sqlx::PgPool;
use testbed::TestDatabase;
use tokio::sync::Notify;
use uuid::Uuid;

pub(crate) struct Outbox {
    pub(crate) pool: PgPool,
    _database: TestDatabase,
}

impl Outbox {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = PgPool::connect(&database.url("orders")).await?;
        outbox::MIGRATIONS.run(&pool).await?;
        Ok(Self { pool, _database: database })
    }

    /// Appends an event as a service would, and returns its id.
    pub(crate) async fn append(&self, aggregate: Uuid, version: i32) -> anyhow::Result<Uuid> {
        let event = event(aggregate, version);
        let mut transaction = self.pool.begin().await?;
        outbox::append(&mut transaction, std::slice::from_ref(&event)).await?;
        transaction.commit().await?;
        Ok(event.event_id)
    }

    pub(crate) fn relay(&self, broker: &ScriptedBroker) -> Relay<ScriptedBroker> {
        // All lanes in one step: what is published then does not depend on where the search begins.
        let options = RelayOptions { lanes: 16, ..RelayOptions::default() };
        Relay::new(self.pool.clone(), broker.clone(), options)
    }

    /// Writes so many events in the past tense: published, `age` ago, as PostgreSQL writes an interval.
    pub(crate) async fn history(&self, events: i64, age: &str) -> anyhow::Result<()> {
        let sql = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                       schema_version, payload, lane, created_at, published_at)
                   select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16,
                          now() - $2::text::interval, now() - $2::text::interval
                   from generate_series(1, $1) as number";
        sqlx::query(sql).bind(events).bind(age).execute(&self.pool).await?;
        Ok(())
    }

    /// How many events there are.
    pub(crate) async fn count(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from outbox").fetch_one(&self.pool).await?)
    }

    /// Published, attempts, parked.
    pub(crate) async fn state(&self, event_id: Uuid) -> anyhow::Result<(bool, i16, bool)> {
        let sql = "select published_at is not null, attempts, parked_at is not null from outbox where event_id = $1";
        Ok(sqlx::query_as(sql).bind(event_id).fetch_one(&self.pool).await?)
    }
}

pub(crate) fn event(aggregate: Uuid, version: i32) -> Draft {
    let kind = ("OrderCreated", 1);
    Draft::new("/orders", ("order", aggregate, version), kind, &TraceContext::root(), &json!({})).unwrap()
}

type Script = Box<dyn FnMut(&Outgoing) -> Outcome + Send>;

/// Cheap to clone; all clones are one broker.
#[derive(Clone)]
pub(crate) struct ScriptedBroker(Arc<State>);

struct State {
    script: Mutex<Script>,
    seen: Mutex<Vec<Uuid>>,
    away: Mutex<bool>,
    /// While `Some`, publishing rings the first bell and then waits for the second.
    hold: Mutex<Option<(Arc<Notify>, Arc<Notify>)>>,
}

impl ScriptedBroker {
    pub(crate) fn that(script: impl FnMut(&Outgoing) -> Outcome + Send + 'static) -> Self {
        Self(Arc::new(State {
            script: Mutex::new(Box::new(script)),
            seen: Mutex::default(),
            away: Mutex::default(),
            hold: Mutex::default(),
        }))
    }

    pub(crate) fn that_confirms() -> Self {
        Self::that(|_| Outcome::Confirmed)
    }

    pub(crate) fn set_away(&self, away: bool) {
        *self.0.away.lock().unwrap() = away;
    }

    /// From now on publishing hangs. Returns (it hangs, let it go on).
    pub(crate) fn hold(&self) -> (Arc<Notify>, Arc<Notify>) {
        let bells = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        *self.0.hold.lock().unwrap() = Some(bells.clone());
        bells
    }

    /// The ids of all that was published, in order, copies included.
    pub(crate) fn seen(&self) -> Vec<Uuid> {
        self.0.seen.lock().unwrap().clone()
    }
}

impl Publisher for ScriptedBroker {
    async fn ready(&mut self) -> Result<(), Away> {
        if *self.0.away.lock().unwrap() { Err(Away("as the test says".into())) } else { Ok(()) }
    }

    async fn publish(&mut self, batch: &[Outgoing]) -> Vec<Outcome> {
        let hold = self.0.hold.lock().unwrap().take();
        self.0.seen.lock().unwrap().extend(batch.iter().map(|message| message.id));
        if let Some((hangs, go_on)) = hold {
            hangs.notify_one();
            go_on.notified().await;
        }
        batch.iter().map(|message| (self.0.script.lock().unwrap())(message)).collect()
    }
}
