use database::Pool;
use events::{Body, Cause, Event};
use messaging::{Applied, Failure, Handler};
use sqlx::PgConnection;

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
        let (applied, ()) = INBOX.apply_once(&self.pool, group, write_mails).await?;
        Ok(applied)
    }
}

/// All mails of a group, in one statement.
///
/// `query` and not `query!`: the statements that are checked at compile time (`.sqlx`) are those of the three services. The
/// tests find what the compiler would have found.
async fn write_mails(transaction: &mut PgConnection, new: &[&Event]) -> Result<(), inbox::Error> {
    let mail = |event: &&Event| match &event.body {
        Body::OrderConfirmed(order) => Some((order.order_id, "confirmed", event.id, CONFIRMED)),
        Body::OrderCancelled(order) => {
            Some((order.order_id, "cancelled", event.id, cancellation_text(order.cause)))
        }
        // Not for mails; recorded as processed all the same.
        _ => None,
    };
    let mails: Vec<_> = new.iter().filter_map(mail).collect();
    sqlx::query(
        "insert into mails (order_id, kind, event_id, body)
         select * from unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[])
         on conflict (order_id, kind) do nothing",
    )
    .bind(mails.iter().map(|mail| mail.0).collect::<Vec<_>>())
    .bind(mails.iter().map(|mail| mail.1).collect::<Vec<_>>())
    .bind(mails.iter().map(|mail| mail.2).collect::<Vec<_>>())
    .bind(mails.iter().map(|mail| mail.3).collect::<Vec<_>>())
    .execute(transaction)
    .await?;
    Ok(())
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
