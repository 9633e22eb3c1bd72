use events::{
    Body, Event, OrderCancelled, OrderCreated,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "billing";

/// `OrderCreated` → an invoice over its total. `OrderCancelled` → a credit note over the same.
pub struct KeepAccounts {
    pool: PgPool,
}

impl KeepAccounts {
    /// Applies into the schema of the pool's login.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

impl Handler for KeepAccounts {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        // Within a group all creations come before all cancellations. For each order that is the order of its events,
        // and one or two statements for each kind do for hundreds of orders.
        let (mut created, mut cancelled) = (vec![], vec![]);
        for event in &first {
            match &event.body {
                Body::OrderCreated(order) => created.push((event.id, order)),
                Body::OrderCancelled(order) => cancelled.push((event.id, order)),
            }
        }
        if !created.is_empty() {
            invoice(&mut transaction, &created).await.map_err(inbox::failure)?;
        }
        if !cancelled.is_empty() {
            credit(&mut transaction, &cancelled).await.map_err(inbox::failure)?;
        }
        faults::reach(Point::EffectWritten);
        // "Processed" and the effect become true together, or not at all. The acknowledgement comes after this line:
        // before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        Ok(inbox::applied(group, &first))
    }
}

/// Writes the invoices of all orders, except those that are off already.
async fn invoice(
    transaction: &mut PgConnection,
    orders: &[(Uuid, &OrderCreated)],
) -> Result<(), sqlx::Error> {
    let (mut order_ids, mut customer_ids, mut amounts, mut currencies, mut event_ids) =
        (vec![], vec![], vec![], vec![], vec![]);
    for (event_id, order) in orders {
        order_ids.push(order.order_id);
        customer_ids.push(order.customer_id);
        amounts.push(order.total.amount);
        currencies.push(order.total.currency.clone());
        event_ids.push(*event_id);
    }
    sqlx::query!(
        "insert into invoices (order_id, customer_id, amount, currency, event_id)
         select invoice.* from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::uuid[])
                               as invoice (order_id, customer_id, amount, currency, event_id)
         where not exists (select from cancelled_orders off where off.order_id = invoice.order_id)",
        &order_ids,
        &customer_ids,
        &amounts,
        &currencies,
        &event_ids,
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Writes a credit note for each invoice of the orders, and notes that they are off.
async fn credit(
    transaction: &mut PgConnection,
    orders: &[(Uuid, &OrderCancelled)],
) -> Result<(), sqlx::Error> {
    let (event_ids, order_ids): (Vec<_>, Vec<_>) =
        orders.iter().map(|(event_id, order)| (*event_id, order.order_id)).unzip();
    sqlx::query!(
        "insert into credit_notes (order_id, amount, currency, event_id)
         select invoices.order_id, invoices.amount, invoices.currency, off.event_id
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         join invoices on invoices.order_id = off.order_id",
        &order_ids,
        &event_ids,
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "insert into cancelled_orders (order_id, event_id, came_first)
         select off.order_id, off.event_id,
                not exists (select from invoices sent where sent.order_id = off.order_id)
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         on conflict (order_id) do nothing",
        &order_ids,
        &event_ids,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
