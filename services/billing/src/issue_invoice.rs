use events::{
    Body, Event,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use sqlx::{PgConnection, PgPool};

/// The name under which this consumer's events are recorded.
const CONSUMER: &str = "billing";

/// `OrderCreated` → an invoice over its total.
pub struct IssueInvoice {
    pool: PgPool,
}

impl IssueInvoice {
    /// Applies into the schema of the pool's login.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

impl Handler for IssueInvoice {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        invoice(&mut transaction, &first).await.map_err(inbox::failure)?;
        faults::reach(Point::EffectWritten);
        // "Processed" and the effect become true together, or not at all. The acknowledgement comes after this line:
        // before it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        Ok(inbox::applied(group, &first))
    }
}

/// Writes the invoices of all orders with one statement, however many orders there are.
async fn invoice(transaction: &mut PgConnection, events: &[&Event]) -> Result<(), sqlx::Error> {
    let (mut order_ids, mut customer_ids, mut amounts, mut currencies, mut event_ids) =
        (vec![], vec![], vec![], vec![], vec![]);
    for event in events {
        let Body::OrderCreated(order) = &event.body;
        order_ids.push(order.order_id);
        customer_ids.push(order.customer_id);
        amounts.push(order.total.amount);
        currencies.push(order.total.currency.clone());
        event_ids.push(event.id);
    }
    if order_ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into invoices (order_id, customer_id, amount, currency, event_id)
         select * from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::uuid[])",
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
