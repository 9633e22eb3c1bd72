use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use database::Pool;
use events::{Body, Event, OrderCreated, derived_id};
use inbox::Inbox;
use messaging::{Applied, Failure, Handler};
use rabbitmq::queues;
use sqlx::PgConnection;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::due_payments::{DuePayment, ProviderCalls};

pub const INBOX: Inbox = Inbox { consumer: "billing", queue: queues::BILLING, keeps_order: true };

/// `OrderCreated`: records a pending payment of the order's total. `OrderCancelled`: voids it, or marks it for refund.
///
/// No customer is charged here. The payment provider is outside of this transaction: the payment is recorded with the
/// event, and the [`PaymentWorker`](crate::PaymentWorker) calls the provider for it, as the relay publishes the rows of the
/// outbox. A slow or unavailable provider delays no event.
///
/// Payments for which the worker has a place are recorded as taken, and handed over after the commit: then the worker needs
/// no transaction to take them.
#[derive(Clone)]
pub struct PaymentHandler {
    pool: Pool,
    calls: Arc<ProviderCalls>,
    restored: bool,
}

impl PaymentHandler {
    /// `restored`: see [`ProviderSettings`](crate::ProviderSettings).
    pub fn new(pool: Pool, calls: Arc<ProviderCalls>, restored: bool) -> Self {
        Self { pool, calls, restored }
    }
}

impl Handler for PaymentHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let effect = async |transaction: &mut PgConnection, new: &[&Event]| {
            update_payments(transaction, new, &self.calls, self.restored).await
        };
        let (applied, (taken, others_are_due)) = INBOX.apply_once(&self.pool, group, effect).await?;
        if others_are_due {
            self.calls.look();
        }
        if !taken.is_empty() {
            self.calls.hand_over(taken);
        }
        Ok(applied)
    }
}

/// Records and cancels payments. Returns those to hand over, and whether others are due: they found no place, or are to be
/// refunded.
async fn update_payments(
    transaction: &mut PgConnection,
    new: &[&Event],
    calls: &ProviderCalls,
    restored: bool,
) -> Result<(Vec<DuePayment>, bool), inbox::Error> {
    // Within a group all creations come before all cancellations. For each order that is the order of its events,
    // and one or two statements for each kind do for hundreds of orders.
    let (mut created, mut cancelled) = (vec![], HashMap::new());
    for event in new {
        match &event.body {
            Body::OrderCreated(order) => created.push((*event, order)),
            Body::OrderCancelled(order) => _ = cancelled.insert(event.id, order.order_id),
            // Published for other services.
            _ => {}
        }
    }
    // A payment that this group voids, because the provider was never called, must not be recorded as taken.
    let off: HashSet<_> = cancelled.values().copied().collect();
    let mut free = calls.places_for_new(created.len());
    let place_for = |order: &OrderCreated| if off.contains(&order.order_id) { None } else { free.pop() };
    let places: Vec<_> = created.iter().map(|(_, order)| *order).map(place_for).collect();
    let others_are_due = !cancelled.is_empty() || places.iter().any(Option::is_none);
    let mut taken = vec![];
    if !created.is_empty() {
        taken = record_payments(transaction, &created, places, calls.retry_lease).await?;
    }
    if !cancelled.is_empty() {
        cancel_payments(transaction, &cancelled, restored).await?;
    }
    Ok((taken, others_are_due))
}

/// Inserts the payments of the orders, except those that are cancelled already. Returns those that have a place: they are
/// recorded as if the worker had taken them.
async fn record_payments(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
    places: Vec<Option<OwnedSemaphorePermit>>,
    retry_lease: Duration,
) -> Result<Vec<DuePayment>, sqlx::Error> {
    let ids: Vec<_> = orders.iter().map(|(event, _)| derived_id(event.id, "payment")).collect();
    let recorded = sqlx::query_scalar!(
        "insert into payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state, attempts, due_at)
         select id, order_id, customer_id, amount, currency, event_id, traceparent, 'asked', taken::int,
                clock_timestamp() + taken::int * make_interval(secs => $9)
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::boolean[])
                  as pending (id, order_id, customer_id, amount, currency, event_id, traceparent, taken)
         where not exists (select from cancelled_orders off where off.order_id = pending.order_id)
         returning id",
        &ids,
        &orders.iter().map(|(_, order)| order.order_id).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.customer_id).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.total.amount).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.total.currency.clone()).collect::<Vec<_>>(),
        &orders.iter().map(|(event, _)| event.id).collect::<Vec<_>>(),
        &orders.iter().map(|(event, _)| event.trace.to_string()).collect::<Vec<_>>(),
        &places.iter().map(Option::is_some).collect::<Vec<_>>(),
        retry_lease.as_secs_f64(),
    )
    .fetch_all(transaction)
    .await?;
    let taken = orders.iter().zip(ids).zip(places).filter_map(|(((event, order), id), place)| {
        Some(DuePayment {
            id,
            order_id: order.order_id,
            customer_id: order.customer_id,
            amount: order.total.clone(),
            event_id: event.id,
            trace: event.trace.child(),
            attempts: 1,
            refund: None,
            _place: place?,
        })
    });
    Ok(taken.filter(|payment| recorded.contains(&payment.id)).collect())
}

/// Voids or refunds the payments of cancelled orders, and records the cancellations.
///
/// A payment for which the provider was never called is void, except after a restore: the call may be forgotten. One for which
/// it may be working right now is called for again until its outcome is known; the worker then sees the mark and has it
/// refunded. Locked in the order of their ids, as the worker locks them: otherwise the two could deadlock.
async fn cancel_payments(
    transaction: &mut PgConnection,
    orders: &HashMap<Uuid, Uuid>,
    restored: bool,
) -> Result<(), sqlx::Error> {
    let (event_ids, order_ids): (Vec<_>, Vec<_>) =
        orders.iter().map(|(event, order)| (*event, *order)).unzip();
    sqlx::query!(
        "insert into cancelled_orders (order_id, event_id, came_first)
         select off.order_id, off.event_id,
                not exists (select from payments asked where asked.order_id = off.order_id)
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         on conflict (order_id) do nothing",
        &order_ids,
        &event_ids,
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "update payments
         set cancelled_by = off.event_id,
             state = case when state = 'captured' then 'refunding'
                          when state = 'asked' and attempts = 0 and not $3 then 'void'
                          else state end,
             attempts = case when state = 'captured' then 0 else attempts end,
             refund_asked_at = case when state = 'captured' then clock_timestamp() end,
             due_at = case when state = 'captured' then clock_timestamp() else due_at end
         from (
             select payments.id, off.event_id
             from payments join unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id) using (order_id)
             order by payments.id for update of payments
         ) off
         where payments.id = off.id and cancelled_by is null",
        &order_ids,
        &event_ids,
        restored,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
