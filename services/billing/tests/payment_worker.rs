//! The payment worker calls the provider until each payment is settled, and charges once, whatever happens in the meantime.
//! With the lab's payment provider and a PostgreSQL database.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use billing::{
    HttpPaymentProvider, PaymentHandler, PaymentProvider, PaymentWorker, ProviderCalls, ProviderResponse,
};
use database::{DatabaseUrl, Pool, PoolKind};
use events::{Cause, Data, Event, Line, Money, NewEvent, OrderCancelled, OrderCreated, TraceContext};
use messaging::{Handler, Wake};
use payment_provider::DECLINED_CUSTOMERS;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use testbed::{TestDatabase, eventually};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long a test waits for a condition, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A lease that does not end in these tests, and is shorter than the minute from which on a payment counts as dated by a wrong
/// clock.
const LONG_LEASE: Duration = Duration::from_secs(55);

/// Billing's handler and the payment provider's API, without their processes.
struct Billing {
    handler: PaymentHandler,
    pool: Pool,
    calls: Arc<ProviderCalls>,
    provider: SocketAddr,
    /// The provider's own tables.
    provider_pool: Pool,
    stop: CancellationToken,
    url: DatabaseUrl,
    database: TestDatabase,
}

impl Drop for Billing {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Billing {
    async fn start() -> anyhow::Result<Self> {
        Self::start_with(LONG_LEASE).await
    }

    async fn start_with(retry_lease: Duration) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        testbed::migrate(database.urls()).await?;
        let provider_url = database.url("provider").parse().map_err(anyhow::Error::msg)?;
        let provider_pool = Pool::new(&provider_url, "provider", 10, PoolKind::Transactions);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let provider = listener.local_addr()?;
        let app = payment_provider::router(payment_provider::Provider::new(provider_pool.clone()));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let url = database.url("billing").parse().map_err(anyhow::Error::msg)?;
        let (pool, calls) =
            (Pool::new(&url, "test", 10, PoolKind::Transactions), ProviderCalls::new(4, retry_lease));
        let handler = PaymentHandler::new(pool.clone(), calls.clone(), false);
        let stop = CancellationToken::new();
        Ok(Self { handler, pool, calls, provider, provider_pool, stop, url, database })
    }

    fn http_provider(&self) -> anyhow::Result<HttpPaymentProvider> {
        HttpPaymentProvider::new(format!("http://{}/", self.provider).parse()?, Duration::from_secs(3))
    }

    /// The worker of the handler's process.
    fn start_worker(&self, provider: impl PaymentProvider) -> JoinHandle<()> {
        self.start_worker_of(&self.calls, provider)
    }

    fn start_worker_of(&self, calls: &Arc<ProviderCalls>, provider: impl PaymentProvider) -> JoinHandle<()> {
        // As in the service: the pool's settings choose the plans.
        let pool = Pool::new(&self.url, "payment worker", 2, PoolKind::Statements);
        let worker = PaymentWorker::new(pool, provider, Wake::new(), calls.clone());
        tokio::spawn(worker.run(self.stop.clone()))
    }

    /// A worker whose calls wait until the test closes the provider's gate.
    fn start_held_worker(&self) -> anyhow::Result<HeldProvider> {
        let provider = HeldProvider::new(self.http_provider()?, &Arc::new(Semaphore::new(0)));
        self.start_worker(provider.clone());
        Ok(provider)
    }

    /// Applies the event of a new order.
    async fn create(&self) -> anyhow::Result<Uuid> {
        let order = Uuid::now_v7();
        self.handler.apply(&[created(order, Uuid::new_v4())]).await?;
        Ok(order)
    }

    /// How often calls for a payment were begun.
    async fn attempts(&self, order: Uuid) -> anyhow::Result<i32> {
        let query = sqlx::query_scalar("select attempts from payments where order_id = $1");
        Ok(query.bind(order).fetch_one(&self.pool).await?)
    }

    /// Has one payment captured, ends the worker, and has another one handed over, which no worker calls for.
    async fn lose_a_payment(&self) -> anyhow::Result<(Uuid, Uuid)> {
        eventually("a payment to be handed over", DEADLINE, async || {
            let worker = self.start_worker(self.http_provider()?);
            let captured = self.create().await?;
            self.until(captured, "captured").await?;
            worker.abort();
            let _ = worker.await;
            let lost = self.create().await?;
            Ok((self.attempts(lost).await? == 1).then_some((captured, lost)))
        })
        .await
    }

    async fn put_faults(&self, faults: Value) -> anyhow::Result<()> {
        let put = reqwest::Client::new().put(format!("http://{}/faults", self.provider)).json(&faults);
        put.send().await?.error_for_status()?;
        Ok(())
    }

    async fn until(&self, order: Uuid, state: &str) -> anyhow::Result<()> {
        eventually(&format!("the payment to be {state}"), DEADLINE, async || {
            let now: Option<String> = sqlx::query_scalar("select state from payments where order_id = $1")
                .bind(order)
                .fetch_optional(&self.pool)
                .await?;
            Ok((now.as_deref() == Some(state)).then_some(()))
        })
        .await
    }

    /// The types of an order's events, in order; the number of its captured charges, and the sum of their refunds.
    async fn outcome(&self, order: Uuid) -> anyhow::Result<(Vec<String>, i64, i64)> {
        let events = sqlx::query_scalar(
            "select event_type from outbox where payload -> 'data' ->> 'orderId' = $1::text order by seq",
        );
        let events = events.bind(order).fetch_all(&self.pool).await?;
        let (charges, refunded) = sqlx::query_as(
            "select count(*), coalesce(sum(refunded), 0)::bigint from charges
             where reference = $1 and status = 'captured'",
        )
        .bind(order)
        .fetch_one(&self.provider_pool)
        .await?;
        Ok((events, charges, refunded))
    }
}

/// A provider whose calls wait until the test closes the gate's semaphore.
#[derive(Clone)]
struct HeldProvider {
    provider: HttpPaymentProvider,
    gate: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl HeldProvider {
    fn new(provider: HttpPaymentProvider, gate: &Arc<Semaphore>) -> Self {
        Self { provider, gate: gate.clone(), begun: Arc::default(), ended: Arc::default() }
    }

    async fn hold(&self, call: impl Future<Output = ProviderResponse>) -> ProviderResponse {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // It has no permits: this returns when it is closed.
        let _ = self.gate.acquire().await;
        let response = call.await;
        self.ended.fetch_add(1, Ordering::SeqCst);
        response
    }

    async fn until_begun(&self, calls: usize) -> anyhow::Result<()> {
        eventually("the calls to begin", DEADLINE, async || {
            Ok((self.begun.load(Ordering::SeqCst) >= calls).then_some(()))
        })
        .await
    }

    async fn until_ended(&self) -> anyhow::Result<()> {
        eventually("the calls to end", DEADLINE, async || {
            Ok((self.begun.load(Ordering::SeqCst) == self.ended.load(Ordering::SeqCst)).then_some(()))
        })
        .await
    }
}

impl PaymentProvider for HeldProvider {
    async fn charge(&self, key: Uuid, order: Uuid, customer: Uuid, amount: &Money) -> ProviderResponse {
        self.hold(self.provider.charge(key, order, customer, amount)).await
    }

    async fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> ProviderResponse {
        self.hold(self.provider.refund(key, charge, amount)).await
    }
}

/// The event as its consumer receives it.
fn event(aggregate: Uuid, version: i32, data: &impl Data) -> Event {
    let event = NewEvent::of(aggregate, version, &TraceContext::root(), data).unwrap();
    events::decode(event.payload.as_bytes(), Some(&event.event_id.to_string()), None).unwrap()
}

fn created(order_id: Uuid, customer_id: Uuid) -> Event {
    let lines = vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }];
    let total = Money { amount: 625, currency: "EUR".into() };
    let body = OrderCreated { order_id, customer_id, lines, total };
    event(order_id, 1, &body)
}

fn cancelled(order_id: Uuid) -> Event {
    cancelled_at(order_id, 2)
}

fn cancelled_at(order_id: Uuid, version: i32) -> Event {
    let body = OrderCancelled { order_id, cause: Cause::Customer, detail: String::new() };
    event(order_id, version, &body)
}

#[tokio::test]
async fn payment_is_captured_and_refunded_when_the_order_is_cancelled() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    billing.start_worker(billing.http_provider()?);
    let order = billing.create().await?;
    billing.until(order, "captured").await?;
    billing.handler.apply(&[cancelled(order)]).await?;
    billing.until(order, "refunded").await?;
    let events = vec!["PaymentCaptured".to_owned(), "PaymentRefunded".to_owned()];
    assert_eq!(billing.outcome(order).await?, (events, 1, 625));
    Ok(())
}

/// In the time that is lost, a customer was charged, and the order was cancelled. The creation comes again. The cancellation is
/// forgotten, and another one takes its place.
#[tokio::test]
async fn restored_service_charges_nobody_twice_and_refunds_what_it_has_forgotten() -> anyhow::Result<()> {
    let mut billing = Billing::start().await?;
    billing.start_worker(billing.http_provider()?);
    let (kept, gone, customer) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::new_v4());
    let events = [created(kept, customer), created(gone, customer), cancelled_at(gone, 4)];
    let answers = async |billing: &Billing| -> anyhow::Result<Vec<Uuid>> {
        let ids = "select event_id from outbox where event_type = 'PaymentCaptured' order by event_id";
        Ok(sqlx::query_scalar(ids).fetch_all(&billing.pool).await?)
    };
    billing.handler.apply(&events[..2]).await?;
    billing.until(kept, "captured").await?;
    billing.until(gone, "captured").await?;
    billing.handler.apply(&[cancelled(gone)]).await?;
    billing.until(gone, "refunded").await?;
    let first = answers(&billing).await?;
    let lost = "truncate outbox, processed_events, payments, cancelled_orders";
    sqlx::raw_sql(lost).execute(&billing.pool).await?;
    billing.handler = PaymentHandler::new(billing.pool.clone(), billing.calls.clone(), true);
    billing.handler.apply(&events).await?;
    billing.until(kept, "captured").await?;
    billing.until(gone, "refunded").await?;
    assert_eq!(answers(&billing).await?, first);
    for (order, refunded) in [(kept, 0), (gone, 625)] {
        let (_, charges, back) = billing.outcome(order).await?;
        assert_eq!((charges, back), (1, refunded));
    }
    Ok(())
}

/// PostgreSQL plans for an empty table and keeps the plan until the table is analysed for the first time, a minute or
/// more later. Without the pool's settings, that plan reads and sorts every pending payment for the four that are due
/// first.
#[tokio::test]
async fn payments_are_taken_without_reading_all_by_a_worker_that_began_with_an_empty_table()
-> anyhow::Result<()> {
    let billing = Billing::start().await?;
    sqlx::query("alter table payments set (autovacuum_enabled = false)").execute(&billing.pool).await?;
    // The provider answers no call, so the worker takes payments once.
    billing.start_held_worker()?;
    // PostgreSQL counts in the worker's session and publishes the counts some seconds later.
    let counted = async || -> anyhow::Result<(i64, i64)> {
        let sql = "select coalesce(sum(idx_scan), 0)::bigint, coalesce(sum(idx_tup_read), 0)::bigint
                   from pg_stat_user_indexes where indexrelname = 'payments_pending'";
        Ok(sqlx::query_as(sql).fetch_one(&billing.pool).await?)
    };

    // After five executions PostgreSQL keeps a plan for all parameters.
    eventually("the worker to have a plan", DEADLINE, async || {
        billing.calls.look();
        Ok((counted().await?.0 >= 10).then_some(()))
    })
    .await?;
    let pending = "insert into payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state)
                   select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 100, 'EUR', gen_random_uuid(), '', 'asked'
                   from generate_series(1, 20000)";
    // Locked, because a scan in the meantime would read entries that are not committed yet.
    let mut filling = billing.pool.begin().await?;
    sqlx::query("lock table payments in access exclusive mode").execute(&mut *filling).await?;
    sqlx::query(pending).execute(&mut *filling).await?;
    filling.commit().await?;
    billing.calls.look();

    let entries = eventually("the worker's scan to be counted", DEADLINE, async || {
        let (_, entries) = counted().await?;
        Ok((entries > 0).then_some(entries))
    });
    let entries = entries.await?;
    assert!((4..=100).contains(&entries), "{entries} index entries were read for four payments");
    Ok(())
}

/// A report reads for hours, and meanwhile vacuum may not remove the index entries of payments that are settled.
#[tokio::test]
async fn entries_of_settled_payments_are_not_read_at_each_look() -> anyhow::Result<()> {
    const SETTLED: i64 = 20_000;
    let billing = Billing::start().await?;
    let mut report = PgConnection::connect(&billing.database.url("billing")).await?;
    let snapshot =
        "set idle_in_transaction_session_timeout = 0; begin isolation level repeatable read; select 1";
    sqlx::raw_sql(snapshot).execute(&mut report).await?;
    let pending = "insert into payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state, due_at)
                   select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 100, 'EUR', gen_random_uuid(), '', 'asked',
                          now() - interval '1 hour' from generate_series(1, $1)";
    sqlx::query(pending).bind(SETTLED).execute(&billing.pool).await?;
    sqlx::query("update payments set state = 'declined', answered_at = now()").execute(&billing.pool).await?;
    billing.start_worker(billing.http_provider()?);
    let (scans, entries) = eventually("the worker to have looked a hundred times", DEADLINE, async || {
        billing.calls.look();
        let sql = "select coalesce(sum(idx_scan), 0)::bigint, coalesce(sum(idx_tup_read), 0)::bigint
                   from pg_stat_user_indexes where indexrelname = 'payments_pending'";
        let (scans, entries): (i64, i64) = sqlx::query_as(sql).fetch_one(&billing.pool).await?;
        Ok((scans >= 100).then_some((scans, entries)))
    })
    .await?;
    assert!(entries < scans * SETTLED / 4, "{entries} entries in {scans} scans");
    Ok(())
}

/// The database's clock was a month ahead when a payment was recorded, and another one tried, and was set back.
#[tokio::test]
async fn payment_dated_by_a_clock_that_was_ahead_is_charged_at_once() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let order = billing.create().await?;
    let tried = billing.create().await?;
    sqlx::query(
        "update payments set due_at = due_at + interval '50 minutes', attempts = (order_id = $1)::int",
    )
    .bind(tried)
    .execute(&billing.pool)
    .await?;
    billing.start_worker(billing.http_provider()?);
    billing.until(order, "captured").await?;
    billing.until(tried, "captured").await
}

#[tokio::test]
async fn cancellation_while_the_charge_is_in_progress_ends_in_a_refund() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let provider = billing.start_held_worker()?;
    let order = billing.create().await?;
    provider.until_begun(1).await?;
    assert_eq!(billing.attempts(order).await?, 1);
    billing.handler.apply(&[cancelled(order)]).await?;
    provider.gate.close();
    billing.until(order, "refunded").await?;
    let events = vec!["PaymentCaptured".to_owned(), "PaymentRefunded".to_owned()];
    assert_eq!(billing.outcome(order).await?, (events, 1, 625));
    Ok(())
}

#[tokio::test]
async fn two_workers_that_call_for_one_payment_at_the_same_time_charge_once() -> anyhow::Result<()> {
    let lease = Duration::from_millis(1);
    let billing = Billing::start_with(lease).await?;
    // The provider uses up one fault for each call.
    billing.put_faults(json!([{ "fault": "slow", "milliseconds": 100, "times": 2 }])).await?;
    // Neither worker respects the other's lease, and both are inside their calls before either call is made.
    let gate = Arc::new(Semaphore::new(0));
    let one = HeldProvider::new(billing.http_provider()?, &gate);
    let other = HeldProvider::new(billing.http_provider()?, &gate);
    billing.start_worker(one.clone());
    billing.start_worker_of(&ProviderCalls::new(4, lease), other.clone());
    let order = billing.create().await?;
    one.until_begun(1).await?;
    other.until_begun(1).await?;
    gate.close();
    billing.until(order, "captured").await?;
    one.until_ended().await?;
    other.until_ended().await?;
    let unused = reqwest::get(format!("http://{}/faults", billing.provider))
        .await?
        .json::<Value>()
        .await?
        .as_array()
        .unwrap()
        .len();
    assert_eq!(unused, 0, "the provider was not called twice");
    assert_eq!(billing.outcome(order).await?, (vec!["PaymentCaptured".to_owned()], 1, 0));
    Ok(())
}

/// The process dies between the handler's commit and the call.
#[tokio::test]
async fn payment_that_was_handed_over_and_lost_is_called_for_after_its_lease() -> anyhow::Result<()> {
    let lease = Duration::from_secs(2);
    let billing = Billing::start_with(lease).await?;
    let (first, lost) = billing.lose_a_payment().await?;
    // In one group with its cancellation it is void, because the provider was never called.
    let void = Uuid::now_v7();
    billing.handler.apply(&[created(void, Uuid::new_v4()), cancelled(void)]).await?;
    billing.start_worker_of(&ProviderCalls::new(4, lease), billing.http_provider()?);
    for (order, state, charges) in [(first, "captured", 1), (lost, "captured", 1), (void, "void", 0)] {
        billing.until(order, state).await?;
        assert_eq!(billing.outcome(order).await?.1, charges, "{state}");
    }
    Ok(())
}

/// Otherwise each place that gets free would go to the newest payment.
#[tokio::test]
async fn refunds_are_called_for_while_new_payments_keep_coming() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let (first, _) = billing.lose_a_payment().await?;
    billing.handler.apply(&[cancelled(first)]).await?;
    let later = billing.create().await?;
    assert_eq!(billing.attempts(later).await?, 0, "it takes a place before the refund");
    billing.start_worker(billing.http_provider()?);
    billing.until(first, "refunded").await?;
    billing.until(later, "captured").await
}

#[tokio::test]
async fn order_that_is_cancelled_before_any_call_is_not_charged() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let (in_one_group, late) = (Uuid::now_v7(), Uuid::now_v7());
    billing.handler.apply(&[created(in_one_group, Uuid::new_v4()), cancelled(in_one_group)]).await?;
    billing.until(in_one_group, "void").await?;
    // Its cancellation comes first.
    billing.handler.apply(&[cancelled(late)]).await?;
    billing.lose_a_payment().await?;
    billing.handler.apply(&[created(late, Uuid::new_v4())]).await?;
    billing.start_worker(billing.http_provider()?);
    // When the next payment is captured, the worker has read the table.
    let next = billing.create().await?;
    billing.until(next, "captured").await?;
    for order in [in_one_group, late] {
        assert_eq!(billing.outcome(order).await?, (vec![], 0, 0));
    }
    Ok(())
}

/// There is no place for the calls, so the provider is never called for them.
#[tokio::test]
async fn cancelled_backlog_is_void_and_not_charged() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let provider = billing.start_held_worker()?;
    let orders: Vec<_> = (0..50).map(|_| Uuid::now_v7()).collect();
    let groups: Vec<_> = orders
        .chunks(5)
        .map(|group| group.iter().map(|order| created(*order, Uuid::new_v4())).collect::<Vec<_>>())
        .collect();
    for group in groups {
        billing.handler.apply(&group).await?;
    }
    provider.until_begun(4).await?;
    billing.handler.apply(&orders.iter().map(|order| cancelled(*order)).collect::<Vec<_>>()).await?;
    let void: i64 = sqlx::query_scalar("select count(*) from payments where state = 'void' and attempts = 0")
        .fetch_one(&billing.pool)
        .await?;
    assert_eq!(void, 46);
    provider.gate.close();
    eventually("the four charges to be refunded", DEADLINE, async || {
        let refunded: i64 = sqlx::query_scalar("select count(*) from payments where state = 'refunded'")
            .fetch_one(&billing.pool)
            .await?;
        Ok((refunded == 4).then_some(()))
    })
    .await?;
    let charges: i64 =
        sqlx::query_scalar("select count(*) from charges").fetch_one(&billing.provider_pool).await?;
    assert_eq!(charges, 4);
    Ok(())
}

/// The oldest due payment is a row that PostgreSQL refuses to change, as a damaged one.
#[tokio::test]
async fn payment_that_cannot_be_taken_keeps_no_others_from_being_taken() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let orders: Vec<_> = (0..5).map(|_| Uuid::now_v7()).collect();
    let group: Vec<_> = orders.iter().map(|order| created(*order, Uuid::new_v4())).collect();
    billing.handler.apply(&group).await?;
    let (bad, good) = orders.split_first().unwrap();
    let refuse = format!(
        "update payments set attempts = 0, due_at = now() - interval '1 minute' * (1 + (order_id = '{bad}')::int);
         create function refuse() returns trigger language plpgsql as
             $$ begin raise 'this row cannot be changed' using errcode = 'data_corrupted'; end $$;
         create trigger refuse before update on payments for each row when (old.order_id = '{bad}')
             execute function refuse()"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(refuse)).execute(&billing.pool).await?;
    let _worker = billing.start_worker(billing.http_provider()?);
    for order in good {
        billing.until(*order, "captured").await?;
    }
    sqlx::query("drop trigger refuse on payments").execute(&billing.pool).await?;
    billing.until(*bad, "captured").await
}

/// Two answers cannot be written, because their events exist already: something that no code does, and no retry mends.
#[tokio::test]
async fn answers_that_cannot_be_written_keep_no_others_from_being_written() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    let provider = billing.start_held_worker()?;
    let orders: Vec<_> = (0..4).map(|_| Uuid::now_v7()).collect();
    let group: Vec<_> = orders.iter().map(|order| created(*order, Uuid::new_v4())).collect();
    billing.handler.apply(&group).await?;
    provider.until_begun(4).await?;
    let (bad, good) = orders.split_at(2);
    let conflicting = sqlx::query(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, lane)
         select gen_random_uuid(), 'payment', id, 1, 'Conflicting', 1, '{}', 0 from payments where order_id = any($1)",
    );
    conflicting.bind(bad).execute(&billing.pool).await?;
    // While the payments are locked no answer is written, and answers gather.
    let mut locked = billing.pool.begin().await?;
    sqlx::query("select from payments for update").execute(&mut *locked).await?;
    provider.gate.close();
    provider.until_ended().await?;
    locked.commit().await?;
    for order in good {
        billing.until(*order, "captured").await?;
    }
    for order in bad {
        billing.until(*order, "asked").await?;
    }
    Ok(())
}

#[tokio::test]
async fn errors_are_retried_and_a_decline_is_final() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    billing.put_faults(json!([{ "fault": "error-after", "times": 2 }])).await?;
    billing.start_worker(billing.http_provider()?);
    let (order, declined) = (Uuid::now_v7(), Uuid::now_v7());
    let without_money = format!("{DECLINED_CUSTOMERS}{}", &Uuid::new_v4().to_string()[8..]).parse()?;
    billing.handler.apply(&[created(order, Uuid::new_v4()), created(declined, without_money)]).await?;
    billing.until(order, "captured").await?;
    billing.until(declined, "declined").await?;
    assert_eq!(billing.outcome(order).await?, (vec!["PaymentCaptured".to_owned()], 1, 0));
    assert_eq!(billing.outcome(declined).await?, (vec!["PaymentDeclined".to_owned()], 0, 0));
    Ok(())
}

/// Each new payment wakes the worker: a timer that begins again then never ends under traffic.
#[tokio::test]
async fn failed_call_is_repeated_while_new_payments_keep_coming() -> anyhow::Result<()> {
    let billing = Billing::start().await?;
    billing.start_worker(billing.http_provider()?);
    let before = billing.create().await?;
    billing.until(before, "captured").await?;
    billing.put_faults(json!([{ "fault": "error-before", "times": 1 }])).await?;
    let order = billing.create().await?;
    eventually("the failed call to be repeated", DEADLINE, async || {
        // Each payment gets its place, so that no group has the worker look for it.
        let next = billing.create().await?;
        billing.until(next, "captured").await?;
        tokio::time::sleep(Duration::from_millis(80)).await;
        let state: String = sqlx::query_scalar("select state from payments where order_id = $1")
            .bind(order)
            .fetch_one(&billing.pool)
            .await?;
        Ok((state == "captured").then_some(()))
    })
    .await
}

/// The call may have succeeded, and what is read of its answer is bounded.
#[tokio::test]
async fn endless_answer_of_the_provider_is_an_unknown_outcome() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?).parse()?;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let Ok((mut stream, _)) = listener.accept().await else { return };
        // The request fits into one segment.
        let _ = stream.read(&mut [0; 4096]).await;
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
        let head = "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut written = stream.write_all(head.as_bytes()).await;
        while written.is_ok() {
            written = stream.write_all(chunk.as_bytes()).await;
            counted.fetch_add(chunk.len(), Ordering::SeqCst);
        }
    });
    let provider = HttpPaymentProvider::new(url, DEADLINE)?;
    let amount = Money { amount: 1, currency: "EUR".into() };
    let answer = provider.charge(Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4(), &amount).await;
    assert!(matches!(&answer, ProviderResponse::Unknown(why) if why.contains("too long")), "{answer:?}");
    // What the sockets hold, and no more.
    assert!(sent.load(Ordering::SeqCst) < 64 << 20, "the client has read {sent:?} bytes");
    Ok(())
}
