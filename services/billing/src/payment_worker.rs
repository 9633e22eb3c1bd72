//! Calls the payment provider for pending payments: the outbox pattern once more, with HTTP in place of the broker.
//!
//! A transaction cannot include a call to another company. So the consumer records the payment, and the worker calls the
//! provider, as often as it takes, and writes the answer together with the event that reports it. A crash between the
//! provider's answer and that commit repeats the call. What makes the repetition harmless is the idempotency key: the id
//! of the event that caused the payment, the same at every call.

use std::{sync::Arc, time::Duration};

use crash_points::crash_point;
use database::PoolKind;
use events::{Data, Money, NewEvent, PaymentCaptured, PaymentDeclined, PaymentRefunded, TraceContext};
use messaging::lane;
use outbox::Wake;
use sqlx::PgPool;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{PaymentProvider, ProviderResponse, Settings};

/// The longest sleep when nothing wakes the worker: for payments that another instance has left behind.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long one statement may take, seen from here: longer than the server's own limit.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(12);

/// How often pending payments are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The worker's connections. Each call needs one for the time of one statement.
const CONNECTIONS: u32 = 8;

/// Calls the provider for pending payments. Cheap to clone.
#[derive(Clone)]
pub struct PaymentWorker<P> {
    pool: PgPool,
    provider: P,
    wake: Wake,
    payments_due: Arc<Notify>,
    options: PaymentWorkerOptions,
}

#[derive(Debug, Clone, Copy)]
pub struct PaymentWorkerOptions {
    /// The most calls at the same time.
    pub calls: u16,
    /// How long a payment that one instance has taken is left alone by others: longer than a call takes.
    pub retry_lease: Duration,
}

/// A payment for which the provider is to be called.
struct DuePayment {
    id: Uuid,
    order_id: Uuid,
    customer_id: Uuid,
    amount: Money,
    event_id: Uuid,
    trace: TraceContext,
    attempts: i32,
    /// The key of the refund, and the charge; `None` while the payment is to be charged.
    refund: Option<(Uuid, Uuid)>,
}

impl<P: PaymentProvider> PaymentWorker<P> {
    /// `wake` wakes the relays after a commit; `payments_due` wakes this worker.
    pub fn new(settings: &Settings, provider: P, wake: Wake, payments_due: Arc<Notify>) -> Self {
        let url = &settings.common.database_url;
        let pool = database::pool(url, "payment worker", CONNECTIONS, PoolKind::Statements);
        let retry_lease = settings.provider_deadline * 2;
        let options = PaymentWorkerOptions { calls: settings.provider_calls, retry_lease };
        Self::on_pool(pool, provider, wake, payments_due, options)
    }

    /// The pool is for single statements.
    pub fn on_pool(
        pool: PgPool,
        provider: P,
        wake: Wake,
        payments_due: Arc<Notify>,
        options: PaymentWorkerOptions,
    ) -> Self {
        Self { pool, provider, wake, payments_due, options }
    }

    /// Calls the provider whenever the worker is woken, and at least every second, until `stop`. Calls in progress are
    /// finished then; a payment without an answer is due again after the next start.
    pub async fn run(self, stop: CancellationToken) {
        let mut calls = JoinSet::new();
        while !stop.is_cancelled() {
            while let Some(ended) = calls.try_join_next() {
                log_panic(ended);
            }
            let most = i64::from(self.options.calls);
            let room = most - i64::try_from(calls.len()).unwrap_or(most);
            // Taking payments is a commit, so under load the worker takes several at once: it waits until a quarter of its
            // calls are free.
            let due = if room * 4 >= most { self.take_due(room).await } else { vec![] };
            let more = room * 4 < most || i64::try_from(due.len()) == Ok(room);
            for payment in due {
                calls.spawn(self.clone().settle(payment));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                // With no call free, the next one that ends makes room.
                ended = calls.join_next(), if !calls.is_empty() && more => ended.into_iter().for_each(log_panic),
                () = self.payments_due.notified(), if !more => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
        while let Some(ended) = calls.join_next().await {
            log_panic(ended);
        }
    }

    /// Counts pending payments into `payments_pending` and the age of the oldest into `payments_oldest_pending_seconds`,
    /// until `stop`. When the database does not answer they become NaN: unknown is never shown as zero.
    pub async fn observe(self, stop: CancellationToken) {
        let observing = async {
            loop {
                let counted = sqlx::query!(
                    r#"select count(*)::float8 as "pending!",
                              coalesce(extract(epoch from clock_timestamp() - min(asked_at)), 0)::float8 as "age!"
                       from payments where state in ('asked', 'refunding')"#
                )
                .fetch_one(&self.pool);
                let counted = timeout(STATEMENT_DEADLINE, counted).await.ok().and_then(Result::ok);
                let (pending, age) = counted.map_or((f64::NAN, f64::NAN), |row| (row.pending, row.age));
                metrics::gauge!("payments_pending").set(pending);
                metrics::gauge!("payments_oldest_pending_seconds").set(age);
                sleep(COUNT_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(observing).await;
    }

    /// Takes payments that are due, at most `most`, and leases them. A payment that is taken and never settled, because
    /// this process dies, is due again when its lease ends.
    ///
    /// A payment that was never taken is due whatever the clock says: after the database's clock has been set back, it would
    /// wait for as long as that.
    ///
    /// `materialized`, because a plan may run a plain subquery once for each row that it is compared with, and its limit
    /// would then apply each time anew.
    async fn take_due(&self, most: i64) -> Vec<DuePayment> {
        let taken = sqlx::query!(
            "with due as materialized (
                 select id from payments
                 where state in ('asked', 'refunding') and (attempts = 0 or due_at <= clock_timestamp())
                 order by due_at limit $1 for update skip locked
             )
             update payments
             set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => $2)
             from due where payments.id = due.id
             returning payments.id, order_id, customer_id, amount, currency, event_id, traceparent, attempts,
                       cancelled_by, charge_id",
            most,
            self.options.retry_lease.as_secs_f64(),
        )
        .fetch_all(&self.pool);
        let taken = timeout(STATEMENT_DEADLINE, taken).await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        let rows = taken.unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to take due payments");
            vec![]
        });
        let due = rows.into_iter().map(|row| DuePayment {
            id: row.id,
            order_id: row.order_id,
            customer_id: row.customer_id,
            amount: Money { amount: row.amount, currency: row.currency },
            event_id: row.event_id,
            trace: TraceContext::parse(&row.traceparent)
                .map_or_else(TraceContext::root, |trace| trace.child()),
            attempts: row.attempts,
            // A charge exists, and its order is cancelled.
            refund: row.cancelled_by.zip(row.charge_id),
        });
        due.collect()
    }

    /// Calls the provider for one payment, and writes the answer.
    async fn settle(self, payment: DuePayment) {
        crash_point("payment-unasked");
        let DuePayment { id, order_id, customer_id, event_id, attempts, .. } = payment;
        let (call, response) = match payment.refund {
            Some((key, charge)) => ("refund", self.provider.refund(key, charge, payment.amount.amount).await),
            None => ("charge", self.provider.charge(event_id, order_id, customer_id, &payment.amount).await),
        };
        crash_point("payment-answered");
        let outcome = match &response {
            ProviderResponse::Done(_) => "done",
            ProviderResponse::Declined(_) => "declined",
            ProviderResponse::Unknown(_) => "unknown",
        };
        metrics::counter!("provider_answers_total", "call" => call, "outcome" => outcome).increment(1);
        let trace_id = payment.trace.trace_id();
        let written = timeout(STATEMENT_DEADLINE, self.write(&payment, response)).await;
        match written.unwrap_or_else(|late| Err(late.into())) {
            Ok(()) => {
                tracing::info!(payment_id = %id, %order_id, trace_id, call, outcome, attempts, "payment provider called");
            }
            // Nothing is lost: the payment is due again when its lease ends, under the same key.
            Err(error) => {
                let error = error.as_ref() as &dyn std::error::Error;
                tracing::warn!(error, payment_id = %id, %order_id, trace_id, call, outcome, "failed to write an answer");
            }
        }
    }

    async fn write(&self, payment: &DuePayment, response: ProviderResponse) -> anyhow::Result<()> {
        let DuePayment { id: payment_id, order_id, .. } = *payment;
        let amount = payment.amount.clone();
        match (payment.refund, response) {
            (None, ProviderResponse::Done(charge_id)) => {
                let body = PaymentCaptured { payment_id, order_id, amount, charge_id };
                self.write_answer(payment, Some(charge_id), new_event(payment, 1, &body)?).await
            }
            (None, ProviderResponse::Declined(reason)) => {
                let body = PaymentDeclined { payment_id, order_id, reason };
                self.write_answer(payment, None, new_event(payment, 1, &body)?).await
            }
            (Some(_), ProviderResponse::Done(refund_id)) => {
                let body = PaymentRefunded { payment_id, order_id, amount, refund_id };
                self.write_answer(payment, Some(refund_id), new_event(payment, 2, &body)?).await
            }
            // A refund cannot be declined: it is repeated too.
            (Some(_), ProviderResponse::Declined(reason)) | (_, ProviderResponse::Unknown(reason)) => {
                self.retry_later(payment, &reason).await
            }
        }
    }

    /// Writes a final answer and its event in one statement. `provider_id` is that of the charge or the refund; `None`
    /// means declined. If the order was cancelled meanwhile, a captured payment is due for a refund at once.
    async fn write_answer(
        &self,
        payment: &DuePayment,
        provider_id: Option<Uuid>,
        event: NewEvent,
    ) -> anyhow::Result<()> {
        let written = sqlx::query_scalar!(
            r#"with settled as (
                 update payments
                 set charge_id = case when state = 'asked' then $2 else charge_id end,
                     answered_at = case when state = 'asked' then clock_timestamp() else answered_at end,
                     refund_id = case when state = 'refunding' then $2 end,
                     refunded_at = case when state = 'refunding' then clock_timestamp() end,
                     last_error = null, attempts = 0, due_at = clock_timestamp(),
                     state = case when state = 'refunding' then 'refunded'
                                  when $2::uuid is null then 'declined'
                                  when cancelled_by is null then 'captured' else 'refunding' end
                 where id = $1 and state = $11
                 returning id, state
             ), event as (
                 insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                     schema_version, payload, headers, lane)
                 select $3, $4, settled.id, $5, $6, $7, $8::text::json, $9, $10
                 from settled
             )
             select state = 'refunding' as "refund_due!" from settled"#,
            payment.id,
            provider_id,
            event.event_id,
            event.aggregate_type,
            event.aggregate_version,
            event.event_type,
            event.schema_version,
            event.payload,
            event.headers,
            lane(payment.id),
            if payment.refund.is_none() { "asked" } else { "refunding" },
        )
        .fetch_optional(&self.pool)
        .await?;
        // `None`: another instance was faster, with the same key and so with the same answer.
        if let Some(refund_due) = written {
            self.wake.after_commit();
            if refund_due {
                self.payments_due.notify_one();
            }
        }
        Ok(())
    }

    /// Schedules another call: after a wait drawn from a range that doubles up to half a minute.
    async fn retry_later(&self, payment: &DuePayment, reason: &str) -> anyhow::Result<()> {
        tracing::warn!(
            payment_id = %payment.id, order_id = %payment.order_id, attempts = payment.attempts, reason,
            "payment provider gave no final answer; the worker will retry"
        );
        sqlx::query!(
            "update payments
             set last_error = $2,
                 due_at = clock_timestamp() + random() * least(30, 0.1 * power(2, least(attempts, 9))) * interval '1 s'
             where id = $1 and state in ('asked', 'refunding')",
            payment.id,
            reason,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

fn new_event<D: Data>(payment: &DuePayment, version: i32, body: &D) -> Result<NewEvent, serde_json::Error> {
    NewEvent::of("/billing", ("payment", payment.id, version), &payment.trace, body)
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a call to the payment provider panicked; it will be repeated");
    }
}
