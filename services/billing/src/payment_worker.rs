//! Calls the payment provider for pending payments: the outbox pattern once more, with HTTP in place of the broker.
//!
//! A transaction cannot include a call to another company. So the consumer records the payment, and the worker calls the
//! provider, as often as it takes, and writes the answer together with the event that reports it. A crash between the
//! provider's answer and that commit repeats the call. What makes the repetition harmless is the idempotency key: the id
//! of the event that caused the payment, the same at every call.

use std::{
    error::Error,
    sync::Arc,
    time::{Duration, SystemTime},
};

use database::{AgeWatermark, Pool, is_locked, is_unavailable, observe};
use events::{
    Data, NewEvent, PaymentCaptured, PaymentDeclined, PaymentRefunded,
    spans::{Kind, Span},
};
use messaging::{RoundLimiter, Wake, crash_points::crash_point};
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    PaymentProvider, ProviderCalls, ProviderResponse,
    due_payments::{self, DuePayment, PassedOver, STATEMENT_DEADLINE},
};

/// The longest sleep when nothing wakes the worker: for payments that another instance has left behind.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The shortest sleep before calls are repeated: what becomes due meanwhile is taken together.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Calls the provider for pending payments. Cheap to clone.
#[derive(Clone)]
pub struct PaymentWorker<P> {
    pool: Pool,
    provider: P,
    /// Wakes the relays after a commit.
    wake: Wake,
    calls: Arc<ProviderCalls>,
}

impl<P: PaymentProvider> PaymentWorker<P> {
    pub fn new(pool: Pool, provider: P, wake: Wake, calls: Arc<ProviderCalls>) -> Self {
        Self { pool, provider, wake, calls }
    }

    /// Calls the provider whenever the worker is woken, and at least every two seconds, until `stop`. Calls in progress are
    /// finished then; a payment without an answer is due again when its lease ends.
    pub async fn run(self, stop: CancellationToken) {
        let (mut calls, mut answered) = (JoinSet::new(), vec![]);
        let (mut limiter, mut watermark, mut passed) =
            (RoundLimiter::default(), AgeWatermark::default(), PassedOver::default());
        // A sleep that each round begins again would never end while new payments keep coming.
        let mut next_look = Instant::now();
        while !stop.is_cancelled() {
            let began = Instant::now();
            while let Some(ended) = calls.try_join_next() {
                answered.extend(called(ended));
            }
            if let Some(wait) = self.write_answers(std::mem::take(&mut answered)).await {
                next_look = next_look.min(Instant::now() + wait.max(RETRY_INTERVAL));
            }
            for payment in self.calls.handed_over() {
                calls.spawn(call(self.provider.clone(), payment));
            }
            if next_look <= Instant::now() {
                next_look = Instant::now() + POLL_INTERVAL;
                self.calls.look();
            }
            for payment in self.take_due(&mut watermark, &mut passed).await {
                calls.spawn(call(self.provider.clone(), payment));
            }
            limiter.wait(began.elapsed()).await;
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = calls.join_next() => answered.extend(called(ended)),
                () = self.calls.changed.notified() => {}
                () = sleep_until(next_look) => {}
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
    async fn take_due(&self, watermark: &mut AgeWatermark, passed: &mut PassedOver) -> Vec<DuePayment> {
        let Some(free) = self.calls.places_for_due() else { return vec![] };
        let scan = watermark.begin();
        let taken = due_payments::take(&self.pool, free, self.calls.retry_lease, &scan, passed).await;
        watermark.ended(&scan, taken.left);
        if taken.more {
            self.calls.look();
        }
        taken.payments
    }

    /// Counts pending payments into `payments_pending` and the age of the oldest into `payments_oldest_pending_seconds`,
    /// until `stop`.
    pub async fn observe(self, stop: CancellationToken) {
        let count = || async {
            let counted = sqlx::query!(
                r#"select count(*)::float8 as "pending!",
                          coalesce(extract(epoch from clock_timestamp() - min(coalesce(refund_asked_at, asked_at))), 0)::float8
                              as "age!"
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

/// A payment for which the provider was called.
struct CalledPayment {
    payment: DuePayment,
    response: ProviderResponse,
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

/// A final answer of the provider.
struct Answer {
    called: CalledPayment,
    /// The id of the charge or the refund; `None` means declined.
    provider_id: Option<Uuid>,
    event: NewEvent,
}

impl<P> PaymentWorker<P> {
    /// Writes the final answers, and schedules another call where there is none. Returns how soon the first of these is due.
    ///
    /// Failures are logged here. Nothing is lost by one: the payment is due again when its lease ends, under the same key.
    async fn write_answers(&self, called: Vec<CalledPayment>) -> Option<Duration> {
        let (mut answers, mut unanswered) = (vec![], vec![]);
        for called in called {
            match final_answer(&called) {
                Ok(Some((provider_id, event))) => answers.push(Answer { called, provider_id, event }),
                Ok(None) => unanswered.push(called),
                Err(error) => log(&called, Some(&error)),
            }
        }
        let scheduled = retry_later(&self.pool, &unanswered).await;
        unanswered.iter().for_each(|called| log(called, scheduled.as_ref().err()));
        // A payment whose lease ended during its call is here twice, with the same answer.
        answers.sort_by_key(|answer| answer.called.payment.id);
        answers.dedup_by_key(|answer| answer.called.payment.id);
        let may_pass = |error: &sqlx::Error| is_unavailable(error) || is_locked(error);
        match self.write_final(&answers).await {
            // One bad answer must not keep the others from being written.
            Err(error) if answers.len() > 1 && !may_pass(&error) => {
                let mut rest = answers.as_slice();
                while let [_, ..] = rest {
                    let alone = self.write_final(&rest[..1]).await;
                    // The others would wait for as long, one after the other, and the worker would take nothing in the
                    // meantime.
                    let ended = if alone.as_ref().is_err_and(may_pass) { rest.len() } else { 1 };
                    log_all(&rest[..ended], alone.err().as_ref());
                    rest = &rest[ended..];
                }
            }
            together => log_all(&answers, together.err().as_ref()),
        }
        scheduled.ok().flatten()
    }

    /// Writes final answers and their events in one statement. If the order was cancelled in the meantime, a captured
    /// payment is due for a refund at once. An answer that another instance has written already has the same key and
    /// content, and changes nothing.
    ///
    /// The payments are locked in the order of their ids, as everywhere: otherwise two transactions could deadlock.
    async fn write_final(&self, answers: &[Answer]) -> Result<(), sqlx::Error> {
        if answers.is_empty() {
            return Ok(());
        }
        let events = || answers.iter().map(|answer| &answer.event);
        let column =
            |text: fn(&NewEvent) -> &str| events().map(|event| text(event).to_owned()).collect::<Vec<_>>();
        let from =
            |answer: &Answer| if answer.called.payment.refund.is_none() { "asked" } else { "refunding" };
        let query = sqlx::query!(
            r#"with answer as materialized (
               select answer.* from unnest($1::uuid[], $2::uuid[], $3::text[]) as answer (payment_id, provider_id, from_state)
               join payments on payments.id = answer.payment_id
               order by payments.id for update of payments
           ), settled as (
               update payments
               set charge_id = case when state = 'asked' then answer.provider_id else charge_id end,
                   answered_at = case when state = 'asked' then clock_timestamp() else answered_at end,
                   refund_id = case when state = 'refunding' then answer.provider_id end,
                   refunded_at = case when state = 'refunding' then clock_timestamp() end,
                   last_error = null, attempts = 0, due_at = clock_timestamp(),
                   refund_asked_at = case when state = 'asked' and cancelled_by is not null and answer.provider_id is not null
                                          then clock_timestamp() else refund_asked_at end,
                   state = case when state = 'refunding' then 'refunded'
                                when answer.provider_id is null then 'declined'
                                when cancelled_by is null then 'captured' else 'refunding' end
               from answer
               where payments.id = answer.payment_id and payments.state = answer.from_state
               returning payments.id, payments.state
           ), event as (
               insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                   schema_version, payload, headers, lane)
               select event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                      payload::json, headers, lane
               from settled
               join unnest($4::uuid[], $5::text[], $1::uuid[], $6::int[], $7::text[], $8::smallint[], $9::text[],
                           $10::jsonb[], $11::smallint[])
                        as event (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                  payload, headers, lane)
                   on event.aggregate_id = settled.id
           )
           select count(*) > 0 as "events!", coalesce(bool_or(state = 'refunding'), false) as "refunds_due!" from settled"#,
            &answers.iter().map(|answer| answer.called.payment.id).collect::<Vec<_>>(),
            &answers.iter().map(|answer| answer.provider_id).collect::<Vec<_>>() as &[Option<Uuid>],
            &answers.iter().map(|answer| from(answer).to_owned()).collect::<Vec<_>>(),
            &events().map(|event| event.event_id).collect::<Vec<_>>(),
            &column(|event| event.aggregate_type),
            &events().map(|event| event.aggregate_version).collect::<Vec<_>>(),
            &column(|event| event.event_type),
            &events().map(|event| event.schema_version).collect::<Vec<_>>(),
            &column(|event| &event.payload),
            &events().map(|event| event.headers.clone()).collect::<Vec<_>>(),
            &events().map(|event| event.lane).collect::<Vec<_>>(),
        );
        let writing = query.fetch_one(self.pool.for_writing()?);
        let written = database::within_deadline(STATEMENT_DEADLINE, writing).await?;
        if written.events {
            self.wake.after_commit();
        }
        if written.refunds_due {
            self.calls.look();
        }
        Ok(())
    }
}

/// The provider's id, and the event that reports the answer. `None` where the answer is not final. A refund cannot be
/// declined: it is repeated too.
fn final_answer(called: &CalledPayment) -> Result<Option<(Option<Uuid>, NewEvent)>, serde_json::Error> {
    let payment = &called.payment;
    let (payment_id, order_id, amount) = (payment.id, payment.order_id, payment.amount.clone());
    Ok(Some(match (payment.refund, &called.response) {
        (None, ProviderResponse::Done(charge_id)) => {
            let body = PaymentCaptured { payment_id, order_id, amount, charge_id: *charge_id };
            (Some(*charge_id), new_event(payment, 1, &body)?)
        }
        (None, ProviderResponse::Declined(reason)) => {
            let body = PaymentDeclined { payment_id, order_id, reason: reason.clone() };
            (None, new_event(payment, 1, &body)?)
        }
        (Some(_), ProviderResponse::Done(refund_id)) => {
            let body = PaymentRefunded { payment_id, order_id, amount, refund_id: *refund_id };
            (Some(*refund_id), new_event(payment, 2, &body)?)
        }
        (Some(_), ProviderResponse::Declined(_)) | (_, ProviderResponse::Unknown(_)) => return Ok(None),
    }))
}

fn new_event<D: Data>(payment: &DuePayment, version: i32, body: &D) -> Result<NewEvent, serde_json::Error> {
    NewEvent::of(payment.id, version, &payment.trace, body)
}

/// Schedules another call for each: after a wait drawn from a range that doubles up to half a minute. Returns the shortest.
async fn retry_later(pool: &Pool, unanswered: &[CalledPayment]) -> Result<Option<Duration>, sqlx::Error> {
    if unanswered.is_empty() {
        return Ok(None);
    }
    let mut reasons = vec![];
    for CalledPayment { payment, response } in unanswered {
        let reason = match response {
            ProviderResponse::Declined(reason) | ProviderResponse::Unknown(reason) => reason.as_str(),
            ProviderResponse::Done(_) => "",
        };
        tracing::warn!(
            payment_id = %payment.id, order_id = %payment.order_id, attempts = payment.attempts, reason,
            "payment provider gave no final answer; the worker will retry"
        );
        reasons.push(reason.to_owned());
    }
    let query = sqlx::query_scalar!(
        "with scheduled as (
             update payments
             set last_error = again.reason,
                 due_at = clock_timestamp() + random() * least(30, 0.1 * power(2, least(attempts, 9))) * interval '1 s'
             from (
                 select payments.id, unanswered.reason
                 from payments join unnest($1::uuid[], $2::text[]) as unanswered (id, reason) using (id)
                 order by payments.id for update of payments
             ) again
             where payments.id = again.id and state in ('asked', 'refunding')
             returning due_at
         )
         select extract(epoch from min(due_at) - clock_timestamp())::float8 from scheduled",
        &unanswered.iter().map(|called| called.payment.id).collect::<Vec<_>>(),
        &reasons,
    );
    let scheduling = query.fetch_one(pool.for_writing()?);
    let first = database::within_deadline(STATEMENT_DEADLINE, scheduling).await?;
    Ok(first.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

fn log_all(answers: &[Answer], error: Option<&sqlx::Error>) {
    for answer in answers {
        log(&answer.called, error);
    }
}

/// Logs one call, and whether its answer was written.
fn log<E: Error + 'static>(called: &CalledPayment, error: Option<&E>) {
    let CalledPayment { payment, response } = called;
    let call = if payment.refund.is_some() { "refund" } else { "charge" };
    let (payment_id, order_id, attempts) = (payment.id, payment.order_id, payment.attempts);
    let (trace_id, outcome) = (payment.trace.trace_id(), response.name());
    if let Some(error) = error {
        let error = error as &dyn Error;
        tracing::warn!(error, %payment_id, %order_id, trace_id, call, outcome, "failed to write an answer");
    } else {
        tracing::info!(%payment_id, %order_id, trace_id, call, outcome, attempts, "payment provider called");
    }
}
