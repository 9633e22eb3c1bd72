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

use database::{Pool, observe};
use events::spans::{Kind, Span};
use messaging::{RoundLimiter, crash_points::crash_point};
use outbox::Wake;
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    PaymentProvider, ProviderCalls, ProviderResponse,
    due_payments::{self, CalledPayment, DuePayment},
};

/// The longest sleep when nothing wakes the worker: for payments that another instance has left behind.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Calls the provider for pending payments. Cheap to clone.
#[derive(Clone)]
pub struct PaymentWorker<P> {
    pub(crate) pool: Pool,
    provider: P,
    /// Wakes the relays after a commit.
    pub(crate) wake: Wake,
    pub(crate) calls: Arc<ProviderCalls>,
}

impl<P: PaymentProvider> PaymentWorker<P> {
    pub fn new(pool: Pool, provider: P, wake: Wake, calls: Arc<ProviderCalls>) -> Self {
        Self { pool, provider, wake, calls }
    }

    /// Calls the provider whenever the worker is woken, and at least every two seconds, until `stop`. Calls in progress are
    /// finished then; a payment without an answer is due again when its lease ends.
    pub async fn run(self, stop: CancellationToken) {
        let (mut calls, mut answered) = (JoinSet::new(), vec![]);
        let mut limiter = RoundLimiter::new();
        while !stop.is_cancelled() {
            let began = Instant::now();
            while let Some(ended) = calls.try_join_next() {
                answered.extend(called(ended));
            }
            self.write_answers(std::mem::take(&mut answered)).await;
            for payment in self.calls.handed_over() {
                calls.spawn(call(self.provider.clone(), payment));
            }
            for payment in self.take_due().await {
                calls.spawn(call(self.provider.clone(), payment));
            }
            limiter.wait(began.elapsed()).await;
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = calls.join_next() => answered.extend(called(ended)),
                () = self.calls.changed.notified() => {}
                () = sleep(POLL_INTERVAL) => self.calls.look(),
            }
        }
        // Payments that are recorded from now on are for the next worker.
        self.calls.look();
        while let Some(ended) = calls.join_next().await {
            answered.extend(called(ended));
        }
        self.write_answers(answered).await;
    }

    /// Takes payments that are due, as far as there are places for their calls.
    async fn take_due(&self) -> Vec<DuePayment> {
        let Some(free) = self.calls.places_for_due() else { return vec![] };
        let most = free.num_permits();
        let due = due_payments::take(&self.pool, free, self.calls.retry_lease).await;
        if due.len() == most {
            self.calls.look();
        }
        due
    }

    /// Counts pending payments into `payments_pending` and the age of the oldest into `payments_oldest_pending_seconds`,
    /// until `stop`.
    pub async fn observe(self, stop: CancellationToken) {
        let count = || async {
            let counted = sqlx::query!(
                r#"select count(*)::float8 as "pending!",
                          coalesce(extract(epoch from clock_timestamp() - min(asked_at)), 0)::float8 as "age!"
                   from payments where state in ('asked', 'refunding')"#
            );
            let counted = counted.fetch_one(&self.pool).await?;
            Ok([counted.pending, counted.age])
        };
        let show = |[pending, age]: [f64; 2]| {
            metrics::gauge!("payments_pending").set(pending);
            metrics::gauge!("payments_oldest_pending_seconds").set(age);
        };
        observe(count, show, stop).await;
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
