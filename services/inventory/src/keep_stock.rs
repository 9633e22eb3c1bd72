use std::collections::BTreeMap;

use events::{
    Body, Event, OrderCancelled, OrderCreated,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "inventory";

/// `OrderCreated` → stock is reserved for each of its lines. `OrderCancelled` → it is released.
pub struct KeepStock {
    pool: PgPool,
}

impl KeepStock {
    /// Applies into the schema of the pool's login.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

impl Handler for KeepStock {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        // Within a group all creations come before all cancellations. For each order that is the order of its events,
        // and two statements for each kind do for hundreds of orders.
        let (mut created, mut cancelled) = (vec![], vec![]);
        for event in &first {
            match &event.body {
                Body::OrderCreated(order) => created.push((event.id, order)),
                Body::OrderCancelled(order) => cancelled.push((event.id, order)),
            }
        }
        if !created.is_empty() {
            reserve(&mut transaction, &created).await.map_err(inbox::failure)?;
        }
        if !cancelled.is_empty() {
            release(&mut transaction, &cancelled).await.map_err(inbox::failure)?;
        }
        faults::reach(Point::EffectWritten);
        // "Processed" and the effect become true together, or not at all. The acknowledgement comes after this line:
        // before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        Ok(inbox::applied(group, &first))
    }
}

/// Reserves the lines of all orders, except those that are off already.
async fn reserve(
    transaction: &mut PgConnection,
    orders: &[(Uuid, &OrderCreated)],
) -> Result<(), sqlx::Error> {
    let (mut order_ids, mut numbers, mut skus, mut quantities, mut event_ids) =
        (vec![], vec![], vec![], vec![], vec![]);
    for (event_id, order) in orders {
        for (number, line) in (1_i16..).zip(&order.lines) {
            order_ids.push(order.order_id);
            numbers.push(number);
            skus.push(line.sku.clone());
            quantities.push(line.quantity);
            event_ids.push(*event_id);
        }
    }
    let reserved = sqlx::query!(
        "insert into reservations (order_id, line_number, sku, quantity, event_id)
         select line.* from unnest($1::uuid[], $2::smallint[], $3::text[], $4::int[], $5::uuid[])
                            as line (order_id, line_number, sku, quantity, event_id)
         where not exists (select from cancelled_orders off where off.order_id = line.order_id)
         returning sku, quantity",
        &order_ids,
        &numbers,
        &skus,
        &quantities,
        &event_ids,
    )
    .fetch_all(&mut *transaction)
    .await?;
    move_stock(transaction, reserved.into_iter().map(|line| (line.sku, i64::from(line.quantity)))).await
}

/// Releases what the orders hold, and notes that they are off.
async fn release(
    transaction: &mut PgConnection,
    orders: &[(Uuid, &OrderCancelled)],
) -> Result<(), sqlx::Error> {
    let (event_ids, order_ids): (Vec<_>, Vec<_>) =
        orders.iter().map(|(event_id, order)| (*event_id, order.order_id)).unzip();
    let released = sqlx::query!(
        "update reservations set released_by = off.event_id, released_at = clock_timestamp()
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         where reservations.order_id = off.order_id
         returning sku, quantity",
        &order_ids,
        &event_ids,
    )
    .fetch_all(&mut *transaction)
    .await?;
    sqlx::query!(
        "insert into cancelled_orders (order_id, event_id, came_first)
         select off.order_id, off.event_id,
                not exists (select from reservations held where held.order_id = off.order_id)
         from unnest($1::uuid[], $2::uuid[]) as off (order_id, event_id)
         on conflict (order_id) do nothing",
        &order_ids,
        &event_ids,
    )
    .execute(&mut *transaction)
    .await?;
    move_stock(transaction, released.into_iter().map(|line| (line.sku, -i64::from(line.quantity)))).await
}

/// Adds to what is spoken for.
async fn move_stock(
    transaction: &mut PgConnection,
    lines: impl Iterator<Item = (String, i64)>,
) -> Result<(), sqlx::Error> {
    // Sorted by SKU, so that two transactions that touch the same rows of `stock` lock them in the same order.
    let mut moved: BTreeMap<String, i64> = BTreeMap::new();
    for (sku, quantity) in lines {
        *moved.entry(sku).or_default() += quantity;
    }
    let (skus, amounts): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
    sqlx::query!(
        "update stock set reserved = stock.reserved + more.amount
         from (select * from unnest($1::text[], $2::bigint[]) as more (sku, amount) order by sku) more
         where stock.sku = more.sku",
        &skus,
        &amounts,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
