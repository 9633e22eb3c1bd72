use database::Pool;
use events::{Body, Cause, Event};
use messaging::{Applied, Failure, Handler};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::INBOX;

/// `OrderConfirmed` and `OrderCancelled`: writes a mail, once.
///
/// It is written, not sent. A row can be part of the transaction of `processed_events`; a call to a mail provider cannot. To
/// send mails, add a task that takes unsent rows, calls the provider with the event's id as the idempotency key until
/// there is an answer, and writes the answer: `services/billing/src/payment_worker.rs` is such a task.
#[derive(Clone)]
pub struct MailHandler {
    pool: Pool,
}

impl MailHandler {
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

impl Handler for MailHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = INBOX.begin(&self.pool).await.map_err(inbox::failure)?;
        let first = INBOX.first_time(&mut transaction, group).await?;
        let mut mails = Mails::default();
        for event in &first {
            match &event.body {
                Body::OrderConfirmed(order) => mails.push(order.order_id, "confirmed", event.id, CONFIRMED),
                Body::OrderCancelled(order) => {
                    mails.push(order.order_id, "cancelled", event.id, cancellation_text(order.cause));
                }
                // Not for mails; recorded as processed all the same.
                _ => {}
            }
        }
        write(&mut transaction, &mails).await.map_err(inbox::failure)?;
        // The record "processed" and the mail are committed together. The acknowledgement comes after this line: before it,
        // a crash would lose the event; after it, a crash only causes a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        Ok(INBOX.applied(group, &first))
    }
}

const CONFIRMED: &str = "Your order is confirmed. Its items are reserved, and your payment has arrived.";

/// The text of a cancellation. An unknown cause comes from a newer version of the order service.
fn cancellation_text(cause: Cause) -> &'static str {
    match cause {
        Cause::Customer => "You have cancelled your order.",
        Cause::OutOfStock => "Your order was cancelled: an item is out of stock.",
        Cause::PaymentDeclined => "Your order was cancelled: your payment was declined.",
        Cause::TimedOut | Cause::Other => "Your order was cancelled. We are sorry.",
    }
}

/// Rows of `mails`, by column.
#[derive(Default)]
struct Mails {
    order_ids: Vec<Uuid>,
    kinds: Vec<&'static str>,
    event_ids: Vec<Uuid>,
    bodies: Vec<&'static str>,
}

impl Mails {
    fn push(&mut self, order_id: Uuid, kind: &'static str, event_id: Uuid, body: &'static str) {
        self.order_ids.push(order_id);
        self.kinds.push(kind);
        self.event_ids.push(event_id);
        self.bodies.push(body);
    }
}

/// All mails of a group, in one statement.
///
/// `query` and not `query!`: the statements that are checked at compile time (`.sqlx`) are those of the three services. The
/// tests find what the compiler would have found.
async fn write(transaction: &mut PgConnection, mails: &Mails) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into mails (order_id, kind, event_id, body)
         select * from unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[])
         on conflict (order_id, kind) do nothing",
    )
    .bind(&mails.order_ids)
    .bind(&mails.kinds)
    .bind(&mails.event_ids)
    .bind(&mails.bodies)
    .execute(transaction)
    .await?;
    Ok(())
}
