//! What inventory and billing answer, and what becomes of the order: the other half of the conversation that
//! [`place_order`](crate::place_order) begins.

use std::collections::HashMap;

use events::{
    Body, Cause, Draft, Event, OrderCancelled, OrderConfirmed,
    transport::{Applied, Failure, Handler},
};
use faults::Point;
use outbox::Wake;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::order_state::{Happening, State};

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "orders";

/// Each answer → a move of its order. The second yes confirms it, the first no cancels it, and either is an event.
#[derive(Clone)]
pub struct FollowOrders {
    pool: PgPool,
    wake: Wake,
}

impl FollowOrders {
    /// Applies into the schema of the pool's login, and wakes the relays when there is something to publish. The pool
    /// has to be one for transactions.
    pub fn new(pool: PgPool, wake: Wake) -> Self {
        Self { pool, wake }
    }
}

/// What an event says about an order.
struct Answer<'event> {
    event: &'event Event,
    order_id: Uuid,
    happening: Happening,
    source: &'static str,
}

/// An order that is locked, and what has become of it.
struct Order {
    state: State,
    version: i32,
    cancelled_for: Option<Cause>,
}

impl Handler for FollowOrders {
    #[expect(
        clippy::disallowed_methods,
        reason = "this pool is for transactions, and no client can hang up on this task"
    )]
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let mut transaction = self.pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, CONSUMER, group).await?;
        let answers: Vec<_> = first.iter().filter_map(|event| answer(event)).collect();
        let mut published = vec![];
        if !answers.is_empty() {
            let mut orders = lock(&mut transaction, &answers).await?;
            for answer in &answers {
                published.extend(take(answer, &mut orders)?);
            }
            write(&mut transaction, &orders).await.map_err(inbox::failure)?;
            record(&mut transaction, &answers).await.map_err(inbox::failure)?;
            outbox::append(&mut transaction, &published).await.map_err(inbox::failure)?;
        }
        faults::reach(Point::EffectWritten);
        // "Processed", the move and its event become true together, or not at all. The acknowledgement comes after this.
        transaction.commit().await.map_err(inbox::failure)?;
        faults::reach(Point::EffectCommitted);
        if !published.is_empty() {
            self.wake.after_commit();
        }
        Ok(inbox::applied(group, &first))
    }
}

fn answer(event: &Event) -> Option<Answer<'_>> {
    let (order_id, happening, source) = match &event.body {
        Body::StockReserved(said) => (said.order_id, Happening::StockReserved, "/inventory"),
        Body::StockRejected(said) => (said.order_id, Happening::StockRejected, "/inventory"),
        Body::StockReleased(said) => (said.order_id, Happening::StockReleased, "/inventory"),
        Body::PaymentCaptured(said) => (said.order_id, Happening::PaymentCaptured, "/billing"),
        Body::PaymentDeclined(said) => (said.order_id, Happening::PaymentDeclined, "/billing"),
        Body::PaymentRefunded(said) => (said.order_id, Happening::PaymentRefunded, "/billing"),
        // Our own words.
        Body::OrderCreated(_) | Body::OrderConfirmed(_) | Body::OrderCancelled(_) => return None,
    };
    Some(Answer { event, order_id, happening, source })
}

/// Locks the orders, all in one order, and reads them. While the lock is held no client's cancellation comes between, and
/// the events that are written here get their place in the outbox behind those that were written before.
async fn lock(
    transaction: &mut PgConnection,
    answers: &[Answer<'_>],
) -> Result<HashMap<Uuid, Order>, Failure> {
    let ids: Vec<_> = answers.iter().map(|answer| answer.order_id).collect();
    let rows = sqlx::query!(
        "select id, status, version from orders where id = any($1) order by id for no key update",
        &ids
    )
    .fetch_all(transaction)
    .await
    .map_err(inbox::failure)?;
    let mut orders = HashMap::with_capacity(rows.len());
    for row in rows {
        let state = row.status.parse().map_err(|problem: String| Failure::Unexpected(problem.into()))?;
        orders.insert(row.id, Order { state, version: row.version, cancelled_for: None });
    }
    Ok(orders)
}

/// Makes one move, and says which event it is worth.
fn take(answer: &Answer<'_>, orders: &mut HashMap<Uuid, Order>) -> Result<Option<Draft>, Failure> {
    let Answer { event, order_id, happening, .. } = *answer;
    let nonsense = |problem: String| Failure::Permanent(problem.into());
    let order = orders.get_mut(&order_id).ok_or_else(|| nonsense(format!("there is no order {order_id}")))?;
    let next = order.state.after(happening).ok_or_else(|| {
        nonsense(format!("{happening:?} contradicts order {order_id}, which is {}", order.state))
    })?;
    if next == order.state {
        return Ok(None);
    }
    order.state = next;
    let aggregate = ("order", order_id, order.version + 1);
    let trace = event.trace.child();
    let draft = match next {
        State::Confirmed => Draft::of("/orders", aggregate, &trace, &OrderConfirmed { order_id }),
        State::Cancelled => {
            let (cause, detail) = why(&event.body);
            order.cancelled_for = Some(cause);
            Draft::of("/orders", aggregate, &trace, &OrderCancelled { order_id, cause, detail })
        }
        State::Pending | State::Reserved | State::Paid => return Ok(None),
    };
    order.version += 1;
    draft.map(Some).map_err(|error| Failure::Unexpected(error.into()))
}

/// Why an order is cancelled, for programs and for people.
fn why(body: &Body) -> (Cause, String) {
    match body {
        Body::StockRejected(said) => (
            Cause::OutOfStock,
            format!("{} of {} were ordered, and {} are left", said.wanted, said.sku, said.available),
        ),
        Body::PaymentDeclined(said) => (Cause::PaymentDeclined, said.reason.clone()),
        _ => (Cause::Other, String::new()),
    }
}

/// Writes what has become of the orders. A move without an event leaves the version alone: it counts what was published.
async fn write(transaction: &mut PgConnection, orders: &HashMap<Uuid, Order>) -> Result<(), sqlx::Error> {
    let (mut ids, mut states, mut versions, mut causes) = (vec![], vec![], vec![], vec![]);
    for (id, order) in orders {
        ids.push(*id);
        states.push(order.state.to_string());
        versions.push(order.version);
        causes.push(order.cancelled_for.map(|cause| cause.name().to_owned()));
    }
    sqlx::query!(
        "update orders
         set status = moved.status, version = moved.version,
             confirmed_at = case when moved.status = 'confirmed' then clock_timestamp() else confirmed_at end,
             cancelled_at = case when moved.status = 'cancelled' then clock_timestamp() end,
             cancelled_for = moved.cause
         from unnest($1::uuid[], $2::text[], $3::int[], $4::text[]) as moved (id, status, version, cause)
         where orders.id = moved.id and orders.status <> moved.status",
        &ids,
        &states,
        &versions,
        &causes as &[Option<String>],
    )
    .execute(transaction)
    .await?;
    Ok(())
}

/// Writes down who has answered what.
async fn record(transaction: &mut PgConnection, answers: &[Answer<'_>]) -> Result<(), sqlx::Error> {
    let (mut order_ids, mut event_ids, mut types, mut sources, mut times) =
        (vec![], vec![], vec![], vec![], vec![]);
    for Answer { event, order_id, source, .. } in answers {
        order_ids.push(*order_id);
        event_ids.push(event.id);
        types.push(event.event_type.to_owned());
        sources.push((*source).to_owned());
        times.push(event.time);
    }
    sqlx::query!(
        "insert into answers (order_id, event_id, event_type, source, occurred_at)
         select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[])",
        &order_ids,
        &event_ids,
        &types,
        &sources,
        &times,
    )
    .execute(transaction)
    .await?;
    Ok(())
}
