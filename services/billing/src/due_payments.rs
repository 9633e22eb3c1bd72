//! Payments for which the payment provider is to be called, how an instance takes them, and how many at a time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use database::{AgeScan, Pool};
use events::{Money, TraceContext, derived_id};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use uuid::Uuid;

/// How long one statement may take, seen from here: longer than the server's own limit.
pub(crate) const STATEMENT_DEADLINE: Duration = Duration::from_secs(12);

/// A payment for which the provider is to be called.
#[derive(Debug)]
pub(crate) struct DuePayment {
    pub(crate) id: Uuid,
    pub(crate) order_id: Uuid,
    pub(crate) customer_id: Uuid,
    pub(crate) amount: Money,
    /// The key of the charge.
    pub(crate) event_id: Uuid,
    pub(crate) trace: TraceContext,
    pub(crate) attempts: i32,
    /// The key of the refund, and the charge; `None` while the payment is to be charged.
    pub(crate) refund: Option<(Uuid, Uuid)>,
    /// Its place among the calls, until the answer is written.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// The calls to the payment provider that one instance may make at the same time. The worker makes them for payments
/// that are due, and for those that the handler hands over.
#[derive(Debug)]
pub struct ProviderCalls {
    places: Arc<Semaphore>,
    most: usize,
    /// How long a payment that one instance has taken is left alone by others: longer than a call takes.
    pub(crate) retry_lease: Duration,
    may_be_due: AtomicBool,
    /// Wakes the worker.
    pub(crate) changed: Notify,
    handed_over: Mutex<Vec<DuePayment>>,
}

impl ProviderCalls {
    pub fn new(most: u16, retry_lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(most.into())),
            most: most.into(),
            retry_lease,
            may_be_due: AtomicBool::new(true),
            changed: Notify::new(),
            handed_over: Mutex::default(),
        })
    }

    /// Has the worker look for payments that are due.
    pub fn look(&self) {
        self.may_be_due.store(true, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// All free places, if payments may be due. `None` also while most calls are in progress: taking payments is a commit,
    /// so under load the worker takes several at once.
    pub(crate) fn places_for_due(&self) -> Option<OwnedSemaphorePermit> {
        let free = self.places.available_permits();
        if free * 4 < self.most || !self.may_be_due.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.places.clone().try_acquire_many_owned(free.try_into().ok()?).inspect_err(|_| self.look()).ok()
    }

    /// Free places for new payments: none while others may be due. Otherwise each place that gets free would go to the
    /// newest payment, and refunds and repeated calls would wait for as long as new ones keep coming.
    pub(crate) fn places_for_new(&self, most: usize) -> Vec<OwnedSemaphorePermit> {
        let most = if self.may_be_due.load(Ordering::SeqCst) { 0 } else { most };
        std::iter::from_fn(|| self.places.clone().try_acquire_owned().ok()).take(most).collect()
    }

    /// Gives the worker payments that were committed as taken.
    pub(crate) fn hand_over(&self, taken: Vec<DuePayment>) {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
        self.changed.notify_one();
    }

    pub(crate) fn handed_over(&self) -> Vec<DuePayment> {
        std::mem::take(&mut *self.handed_over.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The payments that are passed over, because their rows cannot be changed, and since when.
pub(crate) type PassedOver = HashMap<Uuid, Instant>;

/// How long a payment is passed over. Then it is tried again.
const PASS_OVER_FOR: Duration = Duration::from_secs(30);

/// What [`take`] returns.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) payments: Vec<DuePayment>,
    /// The age of the oldest due payment that may be left: `None` if taking them failed.
    pub(crate) left: Option<Duration>,
    /// Whether more may be due.
    pub(crate) more: bool,
}

/// Takes payments that are due, as many as there are places, and leases them. A payment that is taken and never
/// settled, because this process dies, is due again when its lease ends.
///
/// A payment that was never taken is due whatever the clock says, and so is one whose next attempt is more than a minute
/// ahead, which no lease and no back-off is: after the database's clock has been set back, they would wait until it has
/// caught up. Dated before the scan's watermark, both wait for its next full scan.
///
/// `materialized`, because a plan may run a plain subquery once for each row that it is compared with, and its limit
/// would then apply each time.
///
/// A row that cannot be updated does not block the others: after an error that is not the server's, half as many are taken,
/// down to one. That one is then passed over for a while.
pub(crate) async fn take(
    pool: &Pool,
    mut places: OwnedSemaphorePermit,
    lease: Duration,
    scan: &AgeScan,
    passed: &mut PassedOver,
) -> Taken {
    passed.retain(|_, since| since.elapsed() < PASS_OVER_FOR);
    let mut most = places.num_permits();
    let rows = loop {
        let passed_over: Vec<_> = passed.keys().copied().collect();
        let query = sqlx::query!(
            r#"with due as materialized (
                 select id, due_at from payments
                 where state in ('asked', 'refunding')
                   and due_at > statement_timestamp() - make_interval(secs => $3)
                   and (attempts = 0 or due_at <= clock_timestamp() or due_at > clock_timestamp() + interval '1 minute')
                   and id <> all($4)
                 order by due_at limit $1 for update skip locked
             )
             update payments
             set attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => $2)
             from due where payments.id = due.id
             returning payments.id, order_id, customer_id, amount, currency, event_id, traceparent, attempts,
                       cancelled_by, charge_id,
                       greatest(extract(epoch from statement_timestamp() - due.due_at), 0)::float8 as "waited!""#,
            i64::try_from(most).unwrap_or(i64::MAX),
            lease.as_secs_f64(),
            scan.max_age.as_secs_f64(),
            &passed_over,
        );
        let taking = async { query.fetch_all(pool.for_writing()?).await };
        let error = match database::within_deadline(STATEMENT_DEADLINE, taking).await {
            Ok(rows) => break rows,
            Err(error) => error,
        };
        if database::is_unavailable(&error) || database::is_locked(&error) {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to take due payments");
            return Taken::default();
        }
        if most > 1 {
            most /= 2;
            continue;
        }
        // The one that this statement has just found.
        let culprit = sqlx::query_scalar!(
            "select id from payments
             where state in ('asked', 'refunding')
               and due_at > statement_timestamp() - make_interval(secs => $1)
               and (attempts = 0 or due_at <= clock_timestamp() or due_at > clock_timestamp() + interval '1 minute')
               and id <> all($2)
             order by due_at limit 1",
            scan.max_age.as_secs_f64(),
            &passed_over,
        );
        let culprit = culprit.fetch_optional(pool);
        let culprit = database::within_deadline(STATEMENT_DEADLINE, culprit).await.ok().flatten();
        passed.extend(culprit.map(|payment| (payment, Instant::now())));
        tracing::error!(
            error = &error as &dyn std::error::Error,
            payment_id = culprit.map(tracing::field::display),
            "failed to take a due payment; passing it over for a while"
        );
        return Taken { more: culprit.is_some(), ..Taken::default() };
    };
    // They are taken in the order of their times: where there were too few places, the next scan begins at the last one.
    let more = rows.len() == most;
    let left = if !more { 0.0 } else { rows.iter().map(|row| row.waited).fold(f64::MAX, f64::min) };
    let due = rows.into_iter().filter_map(|row| {
        Some(DuePayment {
            id: row.id,
            order_id: row.order_id,
            customer_id: row.customer_id,
            amount: Money { amount: row.amount, currency: row.currency },
            event_id: row.event_id,
            trace: TraceContext::child_of(Some(&row.traceparent)),
            attempts: row.attempts,
            // A charge exists, and its order is cancelled. A payment is refunded once and in full, so the key depends on nothing
            // else: after a restore another event may cancel the order that was cancelled before.
            refund: row.cancelled_by.and(row.charge_id).map(|charge| (derived_id(row.id, "refund"), charge)),
            _place: places.split(1)?,
        })
    });
    Taken { payments: due.collect(), left: Duration::try_from_secs_f64(left).ok(), more }
}
