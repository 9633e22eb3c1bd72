//! Calls the payment provider for pending payments: the outbox pattern once more, with HTTP in place of the broker.
//!
//! A transaction cannot include a call to another company. So the consumer records the payment, and the worker calls the
//! provider, as often as it takes, and writes the answer together with the event that reports it. A crash between the
//! provider's answer and that commit repeats the call. What makes the repetition harmless is the idempotency key: the id
//! of the event that caused the payment, the same at every call.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use database::{Pool, PoolKind};
use events::spans::{Kind, Span};
use messaging::{RoundLimiter, crash_points::crash_point};
use outbox::Wake;
use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    PaymentProvider, ProviderResponse, Settings,
    due_payments::{self, CalledPayment, DuePayment, STATEMENT_DEADLINE},
    provider_answers,
};

/// The longest sleep when nothing wakes the worker: for payments that another instance has left behind.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often pending payments are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The worker's connections: for its rounds, for the count, and one in place of a statement that was given up.
const CONNECTIONS: u32 = 3;

/// Calls the provider for pending payments. Cheap to clone.
#[derive(Clone)]
pub struct PaymentWorker<P> {
    pool: Pool,
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

impl<P: PaymentProvider> PaymentWorker<P> {
    /// `wake` wakes the relays after a commit; `payments_due` wakes this worker.
    pub fn new(settings: &Settings, provider: P, wake: Wake, payments_due: Arc<Notify>) -> Self {
        let url = &settings.common.database_url;
        let pool = Pool::new(url, "payment worker", CONNECTIONS, PoolKind::Statements);
        let retry_lease = settings.provider_deadline * 2;
        let options = PaymentWorkerOptions { calls: settings.provider_calls, retry_lease };
        Self::on_pool(pool, provider, wake, payments_due, options)
    }

    pub fn on_pool(
        pool: Pool,
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
        let (mut calls, mut answered) = (JoinSet::new(), vec![]);
        let mut limiter = RoundLimiter::new();
        let mut may_be_due = true;
        while !stop.is_cancelled() {
            let began = Instant::now();
            while let Some(ended) = calls.try_join_next() {
                answered.extend(called(ended));
            }
            self.write(std::mem::take(&mut answered)).await;
            let most = i64::from(self.options.calls);
            let room = most - i64::try_from(calls.len()).unwrap_or(most);
            // Taking payments is a commit, so under load the worker takes several at once: it waits until a quarter of its
            // calls are free.
            if may_be_due && room * 4 >= most {
                let due = due_payments::take(&self.pool, room, self.options.retry_lease).await;
                may_be_due = i64::try_from(due.len()) == Ok(room);
                for payment in due {
                    calls.spawn(call(self.provider.clone(), payment));
                }
            }
            limiter.wait(began.elapsed()).await;
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = calls.join_next() => answered.extend(called(ended)),
                () = self.payments_due.notified() => may_be_due = true,
                () = sleep(POLL_INTERVAL) => may_be_due = true,
            }
        }
        while let Some(ended) = calls.join_next().await {
            answered.extend(called(ended));
        }
        self.write(answered).await;
    }

    /// Writes the provider's answers, and wakes those who have to do with them.
    async fn write(&self, answered: Vec<CalledPayment>) {
        if answered.is_empty() {
            return;
        }
        let written = provider_answers::write(&self.pool, answered).await;
        if written.events {
            self.wake.after_commit();
        }
        if written.refunds_due {
            self.payments_due.notify_one();
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
}

/// Calls the provider for one payment.
async fn call(provider: impl PaymentProvider, payment: DuePayment) -> CalledPayment {
    crash_point("payment-unasked");
    let began = SystemTime::now();
    let DuePayment { order_id, customer_id, event_id, .. } = payment;
    let (call, response) = match payment.refund {
        Some((key, charge)) => ("refund", provider.refund(key, charge, payment.amount.amount).await),
        None => ("charge", provider.charge(event_id, order_id, customer_id, &payment.amount).await),
    };
    crash_point("payment-answered");
    metrics::counter!("provider_answers_total", "call" => call, "outcome" => response.name()).increment(1);
    events::spans::record(|| {
        let span = Span::ended(payment.trace, Kind::Client, call, began)
            .with("shop.order_id", order_id.to_string())
            .with("shop.attempt", i64::from(payment.attempts))
            .with("shop.outcome", response.name());
        if let ProviderResponse::Unknown(why) = &response { span.failed(why.as_str()) } else { span }
    });
    CalledPayment { payment, response }
}

fn called(ended: Result<CalledPayment, JoinError>) -> Option<CalledPayment> {
    ended
        .inspect_err(
            |error| tracing::error!(%error, "a call to the payment provider panicked; it will be repeated"),
        )
        .ok()
}
