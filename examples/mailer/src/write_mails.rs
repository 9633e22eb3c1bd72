use events::{
    Body, Cause, Event,
    transport::{Applied, Failure, Handler},
};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "mailer";

/// `OrderConfirmed` and `OrderCancelled` → a mail is written, once.
///
/// Written, not sent. A row can be in the transaction of `processed_events`; a call to the company that sends mails cannot.
/// Whoever wants to send them needs a task that takes up what is owed, asks under the event's id until there is an answer,
/// and writes that down: `services/billing/src/teller.rs` is one.
#[derive(Clone)]
pub struct WriteMails {
    pool: PgPool,
}

impl WriteMails {
    /// Applies into the schema of the pool's login.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

impl Handler for WriteMails {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        let mut mails = Mails::default();
        for event in &first {
            match &event.body {
                Body::OrderConfirmed(order) => mails.push(order.order_id, "confirmed", event.id, CONFIRMED),
                Body::OrderCancelled(order) => {
                    mails.push(order.order_id, "cancelled", event.id, why(order.cause));
                }
                // Of no consequence here: recorded as processed, so that it is let pass once and for all.
                _ => {}
            }
        }
        write(&mut transaction, &mails).await.map_err(inbox::failure)?;
        // "Processed" and the mail become true together, or not at all. The acknowledgement comes after this line: before
        // it, a crash would lose the event; after it, a crash only brings a duplicate.
        transaction.commit().await.map_err(inbox::failure)?;
        Ok(inbox::applied(group, &first))
    }
}

const CONFIRMED: &str =
    "Your order is confirmed. We have put it aside for you, and your payment has arrived.";

/// What a cancellation says. A cause that a newer writer knows is some other cause.
fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::Customer => "You have cancelled your order.",
        Cause::OutOfStock => "Your order is off: we have too little of something.",
        Cause::PaymentDeclined => "Your order is off: your payment was declined.",
        Cause::TimedOut | Cause::Other => "Your order is off. We are sorry.",
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
/// `query` and not `query!`: the compiler knows the schemas of the shop (`.sqlx`), and this is none of them. What it
/// would have found, the tests find.
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
