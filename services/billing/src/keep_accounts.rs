use std::{collections::HashMap, sync::Arc};

use events::{
    Body, Event, OrderCreated,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use sqlx::{PgConnection, PgPool};
use tokio::sync::Notify;
use uuid::Uuid;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "billing";

/// `OrderCreated` → a payment over its total is owed. `OrderCancelled` → it is not, or what was charged is to be given
/// back.
///
/// Nobody is charged here. The payment provider is outside of this transaction, and outside of this house: what it is to
/// be asked is written down with the event, and the [`Teller`](crate::Teller) asks, as the relay publishes what is
/// written in the outbox. A provider that is slow or away keeps no event waiting.
#[derive(Clone)]
pub struct KeepAccounts {
    pool: PgPool,
    bell: Arc<Notify>,
}

impl KeepAccounts {
    /// Applies into the schema of the pool's login, and rings when there is something to ask.
    pub fn new(pool: PgPool, bell: Arc<Notify>) -> Self {
        Self { pool, bell }
    }
}

impl Handler for KeepAccounts {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        // Within a group all creations come before all cancellations. For each order that is the order of its events,
        // and one or two statements for each kind do for hundreds of orders.
        let (mut created, mut cancelled) = (vec![], HashMap::new());
        for event in &first {
            match &event.body {
                Body::OrderCreated(order) => created.push((*event, order)),
                Body::OrderCancelled(order) => _ = cancelled.insert(event.id, order.order_id),
                // Published for others, and of no consequence here.
                _ => {}
            }
        }
        if !created.is_empty() {
            owe(&mut transaction, &created).await.map_err(inbox::failure)?;
        }
        if !cancelled.is_empty() {
            take_back(&mut transaction, &cancelled).await.map_err(inbox::failure)?;
        }
        faults::reach(Point::EffectWritten);
        // "Processed" and the effect become true together, or not at all. The acknowledgement comes after this line:
        // before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        self.bell.notify_one();
        Ok(inbox::applied(group, &first))
    }
}

/// Writes the payments of all orders, except those that are off already.
async fn owe(transaction: &mut PgConnection, orders: &[(&Event, &OrderCreated)]) -> Result<(), sqlx::Error> {
    let (mut ids, mut order_ids, mut customer_ids, mut amounts, mut currencies, mut event_ids, mut traces) =
        (vec![], vec![], vec![], vec![], vec![], vec![], vec![]);
    for (event, order) in orders {
        ids.push(Uuid::now_v7());
        order_ids.push(order.order_id);
        customer_ids.push(order.customer_id);
        amounts.push(order.total.amount);
        currencies.push(order.total.currency.clone());
        event_ids.push(event.id);
        traces.push(event.trace.to_string());
    }
    sqlx::query!(
        "insert into payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state)
         select owed.*, 'asked'
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::text[], $6::uuid[], $7::text[])
                  as owed (id, order_id, customer_id, amount, currency, event_id, traceparent)
         where not exists (select from cancelled_orders off where off.order_id = owed.order_id)",
        &ids,
        &order_ids,
        &customer_ids,
        &amounts,
        &currencies,
        &event_ids,
        &traces,
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Takes back what the orders owe or have paid, and notes that they are off.
///
/// A payment that the provider was never asked for is void. One that it may be working on right now is asked for again,
/// until it is known what became of it; the teller sees the mark and has it refunded then.
async fn take_back(transaction: &mut PgConnection, orders: &HashMap<Uuid, Uuid>) -> Result<(), sqlx::Error> {
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
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         where payments.order_id = off.order_id and cancelled_by is null",
        &order_ids,
        &event_ids,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
