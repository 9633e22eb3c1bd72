use std::collections::BTreeMap;

use events::{
    Body, Event,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use sqlx::{PgConnection, PgPool};

/// The name under which this consumer's events are recorded.
const CONSUMER: &str = "inventory";

/// `OrderCreated` → stock is reserved for each of its lines.
pub struct ReserveStock {
    pool: PgPool,
}

impl ReserveStock {
    /// Applies into the schema of the pool's login.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

impl Handler for ReserveStock {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        reserve(&mut transaction, &first).await.map_err(inbox::failure)?;
        faults::reach(Point::EffectWritten);
        // "Processed" and the effect become true together, or not at all. The acknowledgement comes after this line:
        // before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        Ok(inbox::applied(group, &first))
    }
}

/// Reserves the lines of all orders with two statements, however many orders there are.
async fn reserve(transaction: &mut PgConnection, events: &[&Event]) -> Result<(), sqlx::Error> {
    let (mut order_ids, mut numbers, mut skus, mut quantities, mut event_ids) =
        (vec![], vec![], vec![], vec![], vec![]);
    // Sorted by SKU, so that two transactions that touch the same rows of `stock` lock them in the same order.
    let mut reserved: BTreeMap<&str, i64> = BTreeMap::new();
    for event in events {
        let Body::OrderCreated(order) = &event.body;
        for (number, line) in (1_i16..).zip(&order.lines) {
            order_ids.push(order.order_id);
            numbers.push(number);
            skus.push(line.sku.clone());
            quantities.push(line.quantity);
            event_ids.push(event.id);
            *reserved.entry(&line.sku).or_default() += i64::from(line.quantity);
        }
    }
    if order_ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into reservations (order_id, line_number, sku, quantity, event_id)
         select * from unnest($1::uuid[], $2::smallint[], $3::text[], $4::int[], $5::uuid[])",
        &order_ids,
        &numbers,
        &skus,
        &quantities,
        &event_ids,
    )
    .execute(&mut *transaction)
    .await?;
    let (skus, amounts): (Vec<String>, Vec<i64>) =
        reserved.into_iter().map(|(sku, amount)| (sku.to_owned(), amount)).unzip();
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
