//! What the payment provider is owed: the outbox once more, with HTTP in place of the broker.
//!
//! A transaction cannot hold a call to somebody else. So the consumer writes down what is to be asked, and the teller
//! asks, as often as it takes, and writes down the answer together with the event that tells of it. Between the
//! provider's "done" and that commit there is a gap, and a crash in it asks a second time. What makes that harmless is a
//! key that the provider knows the request by: the id of the event that caused it, the same at every try.

use std::{sync::Arc, time::Duration};

use events::{Data, Draft, Money, PaymentCaptured, PaymentDeclined, PaymentRefunded, TraceContext};
use faults::Point;
use outbox::Wake;
use sqlx::PgPool;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{Answer, Provider};

/// How long to sleep at most when nobody rings: for payments that another instance has left behind.
const POLL: Duration = Duration::from_secs(1);

/// How long the database may take for one statement.
const PATIENCE: Duration = Duration::from_secs(12);

/// How often what is owed is counted.
const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Asks the provider for what is owed.
#[derive(Clone)]
pub struct Teller {
    pool: PgPool,
    provider: Provider,
    wake: Wake,
    bell: Arc<Notify>,
    options: TellerOptions,
}

/// How much at a time, and how long.
#[derive(Debug, Clone, Copy)]
pub struct TellerOptions {
    /// Calls under way at the same time.
    pub calls: u16,
    /// For how long a payment that somebody has in hand is left alone by others: longer than a call takes.
    pub hands_off: Duration,
}

/// A payment that is owed a call.
struct Owed {
    id: Uuid,
    order_id: Uuid,
    customer_id: Uuid,
    amount: Money,
    event_id: Uuid,
    trace: TraceContext,
    attempts: i32,
    /// The key of the refund, and what is to be refunded; `None` while it is still to be charged.
    refund: Option<(Uuid, Uuid)>,
}

impl Teller {
    /// The pool is for single statements; `wake` is rung when there is something to publish, `bell` when there is something
    /// to ask.
    pub fn new(
        pool: PgPool,
        provider: Provider,
        wake: Wake,
        bell: Arc<Notify>,
        options: TellerOptions,
    ) -> Self {
        Self { pool, provider, wake, bell, options }
    }

    /// Asks for what is owed whenever the bell rings, and now and then, until `stop`. Calls that are under way then are
    /// finished; what is not is asked for again after the next start.
    pub async fn run(self, stop: CancellationToken) {
        let mut calls = JoinSet::new();
        while !stop.is_cancelled() {
            while let Some(ended) = calls.try_join_next() {
                note_panic(ended);
            }
            let most = i64::from(self.options.calls);
            let room = most - i64::try_from(calls.len()).unwrap_or(most);
            // Taking is a commit. With many owed, it waits until a few can be taken with one; while others hang, up to a
            // quarter of the hands are idle.
            let owed = if room * 4 >= most { self.take_in_hand(room).await } else { vec![] };
            let more = room * 4 < most || i64::try_from(owed.len()) == Ok(room);
            for payment in owed {
                calls.spawn(self.clone().settle(payment));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                // With all hands full, whoever is free next looks again.
                ended = calls.join_next(), if !calls.is_empty() && more => ended.into_iter().for_each(note_panic),
                () = self.bell.notified(), if !more => {}
                () = sleep(POLL) => {}
            }
        }
        while let Some(ended) = calls.join_next().await {
            note_panic(ended);
        }
    }

    /// Counts what is owed into `payments_owed` and `payments_oldest_owed_seconds`, until `stop`. When the database does
    /// not answer they become NaN: unknown is never shown as zero.
    pub async fn observe(self, stop: CancellationToken) {
        let observing = async {
            loop {
                let counted = sqlx::query!(
                    r#"select count(*)::float8 as "owed!",
                              coalesce(extract(epoch from clock_timestamp() - min(asked_at)), 0)::float8 as "age!"
                       from payments where state in ('asked', 'refunding')"#
                )
                .fetch_one(&self.pool);
                let counted = timeout(PATIENCE, counted).await.ok().and_then(Result::ok);
                let (owed, age) = counted.map_or((f64::NAN, f64::NAN), |row| (row.owed, row.age));
                metrics::gauge!("payments_owed").set(owed);
                metrics::gauge!("payments_oldest_owed_seconds").set(age);
                sleep(COUNT_EVERY).await;
            }
        };
        stop.run_until_cancelled(observing).await;
    }

    /// Takes what is due, at most so many, and moves them out of the way of others. One that is taken and never settled,
    /// because this process dies, is due again by itself.
    ///
    /// `materialized`, because a plan may carry out a plain subquery once for each row that it is compared with, and each
    /// time the limit would let as many more through.
    async fn take_in_hand(&self, most: i64) -> Vec<Owed> {
        let taken = sqlx::query!(
            "with due as materialized (
                 select id from payments
                 where state in ('asked', 'refunding') and due_at <= clock_timestamp()
                 order by due_at limit $1 for update skip locked
             )
             update payments
             set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => $2)
             from due where payments.id = due.id
             returning payments.id, order_id, customer_id, amount, currency, event_id, traceparent, attempts,
                       cancelled_by, charge_id",
            most,
            self.options.hands_off.as_secs_f64(),
        )
        .fetch_all(&self.pool);
        let rows = match timeout(PATIENCE, taken).await {
            Ok(Ok(rows)) => rows,
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot see which payments are owed"
                );
                vec![]
            }
            Err(_) => {
                tracing::warn!("cannot see which payments are owed: the database is silent");
                vec![]
            }
        };
        let owed = rows.into_iter().map(|row| Owed {
            id: row.id,
            order_id: row.order_id,
            customer_id: row.customer_id,
            amount: Money { amount: row.amount, currency: row.currency },
            event_id: row.event_id,
            trace: TraceContext::parse(&row.traceparent)
                .map_or_else(TraceContext::root, |trace| trace.child()),
            attempts: row.attempts,
            // A charge that is there, of an order that is off.
            refund: row.cancelled_by.zip(row.charge_id),
        });
        owed.collect()
    }

    /// Asks for one payment, and writes down what came of it.
    async fn settle(self, owed: Owed) {
        faults::reach(Point::PaymentUnasked);
        let amount = owed.amount.amount;
        let (what, answer) = match owed.refund {
            Some((key, charge)) => ("refund", self.provider.refund(key, charge, amount).await),
            None => {
                let Owed { order_id, customer_id, event_id, .. } = owed;
                let currency = &owed.amount.currency;
                ("charge", self.provider.charge(event_id, order_id, customer_id, amount, currency).await)
            }
        };
        faults::reach(Point::PaymentAnswered);
        let outcome = match &answer {
            Answer::Done(_) => "done",
            Answer::Declined(_) => "declined",
            Answer::Unknown(_) => "unknown",
        };
        metrics::counter!("provider_answers_total", "call" => what, "outcome" => outcome).increment(1);
        let Owed { id, order_id, attempts, .. } = owed;
        let trace_id = owed.trace.trace_id();
        match timeout(PATIENCE, self.write(&owed, answer.clone())).await {
            Ok(Ok(())) => {
                tracing::info!(payment_id = %id, %order_id, trace_id, what, outcome, attempts, "the provider was asked");
            }
            // Nothing is lost: it is due again in a while, under the same key.
            Ok(Err(error)) => {
                let error = error.as_ref() as &dyn std::error::Error;
                tracing::warn!(error, payment_id = %id, %order_id, trace_id, what, outcome, "an answer was not written");
            }
            Err(_) => {
                tracing::warn!(payment_id = %id, %order_id, trace_id, what, outcome, "an answer was not written in time");
            }
        }
    }

    async fn write(&self, owed: &Owed, answer: Answer) -> anyhow::Result<()> {
        let Owed { id: payment_id, order_id, .. } = *owed;
        let amount = owed.amount.clone();
        match (owed.refund, answer) {
            (None, Answer::Done(charge_id)) => {
                let body = PaymentCaptured { payment_id, order_id, amount, charge_id };
                self.charged(owed, Some(charge_id), draft(owed, 1, &body)?).await
            }
            (None, Answer::Declined(reason)) => {
                let body = PaymentDeclined { payment_id, order_id, reason };
                self.charged(owed, None, draft(owed, 1, &body)?).await
            }
            (Some(_), Answer::Done(refund_id)) => {
                let body = PaymentRefunded { payment_id, order_id, amount, refund_id };
                self.refunded(owed, refund_id, draft(owed, 2, &body)?).await
            }
            // There is no such thing as a refund that is not owed.
            (Some(_), Answer::Declined(reason)) | (_, Answer::Unknown(reason)) => {
                self.again(owed, &reason).await
            }
        }
    }

    /// The answer to a charge, and its event, in one statement. If the order was taken back meanwhile, what was captured is
    /// owed a refund from this very moment on.
    async fn charged(&self, owed: &Owed, charge_id: Option<Uuid>, event: Draft) -> anyhow::Result<()> {
        let written = sqlx::query_scalar!(
            r#"with settled as (
                 update payments
                 set charge_id = $2, answered_at = clock_timestamp(), last_error = null, attempts = 0,
                     due_at = clock_timestamp(),
                     state = case when $2::uuid is null then 'declined'
                                  when cancelled_by is null then 'captured' else 'refunding' end
                 where id = $1 and state = 'asked'
                 returning id, state
             ), event as (
                 insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                     schema_version, payload, headers, lane)
                 select $3, $4, settled.id, $5, $6, $7, $8::text::json, $9, $10
                 from settled
             )
             select state = 'refunding' as "off!" from settled"#,
            owed.id,
            charge_id,
            event.event_id,
            event.aggregate_type,
            event.aggregate_version,
            event.event_type,
            event.schema_version,
            event.payload,
            event.headers,
            event.lane,
        )
        .fetch_optional(&self.pool)
        .await?;
        // None: somebody else was quicker, with the same key and so with the same answer.
        if let Some(off) = written {
            self.wake.after_commit();
            if off {
                self.bell.notify_one();
            }
        }
        Ok(())
    }

    /// The answer to a refund, and its event, in one statement.
    async fn refunded(&self, owed: &Owed, refund_id: Uuid, event: Draft) -> anyhow::Result<()> {
        let written = sqlx::query!(
            "with settled as (
                 update payments
                 set state = 'refunded', refund_id = $2, refunded_at = clock_timestamp(), last_error = null
                 where id = $1 and state = 'refunding'
                 returning id
             )
             insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                 schema_version, payload, headers, lane)
             select $3, $4, settled.id, $5, $6, $7, $8::text::json, $9, $10
             from settled",
            owed.id,
            refund_id,
            event.event_id,
            event.aggregate_type,
            event.aggregate_version,
            event.event_type,
            event.schema_version,
            event.payload,
            event.headers,
            event.lane,
        )
        .execute(&self.pool)
        .await?;
        if written.rows_affected() > 0 {
            self.wake.after_commit();
        }
        Ok(())
    }

    /// No answer that settles anything: asked again later, drawn from a range that doubles up to half a minute.
    async fn again(&self, owed: &Owed, reason: &str) -> anyhow::Result<()> {
        tracing::warn!(
            payment_id = %owed.id, order_id = %owed.order_id, attempts = owed.attempts, reason,
            "the provider gave no answer that settles anything; it will be asked again"
        );
        sqlx::query!(
            "update payments
             set last_error = $2,
                 due_at = clock_timestamp() + random() * least(30, 0.1 * power(2, least(attempts, 9))) * interval '1 s'
             where id = $1 and state in ('asked', 'refunding')",
            owed.id,
            reason,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

fn draft<D: Data>(owed: &Owed, version: i32, body: &D) -> Result<Draft, serde_json::Error> {
    Draft::of("/billing", ("payment", owed.id, version), &owed.trace, body)
}

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a call to the provider ended badly; it will be made again");
    }
}
