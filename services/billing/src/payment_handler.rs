use std::{collections::HashMap, sync::Arc};

use database::Pool;
use events::{Body, Event, OrderCreated};
use messaging::{Applied, Failure, Handler};
use sqlx::PgConnection;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::INBOX;

/// `OrderCreated`: records a pending payment of the order's total. `OrderCancelled`: voids it, or marks it for refund.
///
/// No customer is charged here. The payment provider is outside of this transaction: the payment is recorded with the
/// event, and the [`PaymentWorker`](crate::PaymentWorker) calls the provider for it, as the relay publishes the rows of the
/// outbox. A slow or unavailable provider delays no event.
#[derive(Clone)]
pub struct PaymentHandler {
    pool: Pool,
    payments_due: Arc<Notify>,
}

impl PaymentHandler {
    /// `payments_due` wakes the payment worker after a commit.
    pub fn new(pool: Pool, payments_due: Arc<Notify>) -> Self {
        Self { pool, payments_due }
    }
}

impl Handler for PaymentHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let (applied, changed) = INBOX.apply_once(&self.pool, group, update_payments).await?;
        // Not after events of other kinds: the worker would look for payments and find none.
        if changed {
            self.payments_due.notify_one();
        }
        Ok(applied)
    }
}

/// Records and cancels payments. Returns whether it has changed any.
async fn update_payments(transaction: &mut PgConnection, new: &[&Event]) -> Result<bool, inbox::Error> {
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
    if !created.is_empty() {
        record_payments(transaction, &created).await?;
    }
    if !cancelled.is_empty() {
        cancel_payments(transaction, &cancelled).await?;
    }
    Ok(!(created.is_empty() && cancelled.is_empty()))
}

/// Inserts the payments of the orders, except those that are cancelled already.
async fn record_payments(
    transaction: &mut PgConnection,
    orders: &[(&Event, &OrderCreated)],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state)
         select pending.*, 'asked'
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::uuid[], $7::text[])
                  as pending (id, order_id, customer_id, amount, currency, event_id, traceparent)
         where not exists (select from cancelled_orders off where off.order_id = pending.order_id)",
        &orders.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.order_id).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.customer_id).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.total.amount).collect::<Vec<_>>(),
        &orders.iter().map(|(_, order)| order.total.currency.clone()).collect::<Vec<_>>(),
        &orders.iter().map(|(event, _)| event.id).collect::<Vec<_>>(),
        &orders.iter().map(|(event, _)| event.trace.to_string()).collect::<Vec<_>>(),
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Voids or refunds the payments of cancelled orders, and records the cancellations.
///
/// A payment for which the provider was never called is void. One for which it may be working right now is called for
/// again until its outcome is known; the worker then sees the mark and has it refunded. Locked in the order of their ids, as
/// the worker locks them: otherwise the two could deadlock.
async fn cancel_payments(
    transaction: &mut PgConnection,
    orders: &HashMap<Uuid, Uuid>,
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
                          when state = 'asked' and attempts = 0 then 'void'
                          else state end,
             attempts = case when state = 'captured' then 0 else attempts end,
             due_at = case when state = 'captured' then clock_timestamp() else due_at end
         from (
             select payments.id, off.event_id
             from payments join unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id) using (order_id)
             order by payments.id for update of payments
         ) off
         where payments.id = off.id and cancelled_by is null",
        &order_ids,
        &event_ids,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
