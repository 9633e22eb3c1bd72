//! Applies the answers of inventory and billing to orders: the second half of what
//! [`place_order`](crate::place_order) begins.

use std::collections::HashMap;

use database::Pool;
use events::{Body, Cause, Event, Money, NewEvent, OrderCancelled, OrderConfirmed};
use inbox::{Error, Inbox};
use messaging::{Applied, Failure, Handler, Wake};
use rabbitmq::queues;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::order_state::{OrderState, Trigger};

/// Events may be applied in any order: `order_state` allows each answer only from the states that it can follow.
pub const INBOX: Inbox = Inbox { consumer: "orders", queue: queues::ORDERS, keeps_order: false };

/// Applies each answer as a transition of its order. The second positive answer confirms the order, the first negative one
/// cancels it, and either is an event.
#[derive(Clone)]
pub struct OrderHandler {
    pool: Pool,
    wake: Wake,
}

impl OrderHandler {
    /// `wake` wakes the relays after a commit.
    pub fn new(pool: Pool, wake: Wake) -> Self {
        Self { pool, wake }
    }
}

/// What an event means for an order.
struct Answer<'event> {
    event: &'event Event,
    order_id: Uuid,
    trigger: Trigger,
    /// What was charged or refunded.
    amount: Option<&'event Money>,
}

/// A locked order and its new state.
struct Order {
    state: OrderState,
    total: Money,
    version: i32,
    cancelled_for: Option<Cause>,
}

impl Handler for OrderHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        let (applied, published) = INBOX.apply_once(&self.pool, group, move_orders).await?;
        if published > 0 {
            self.wake.after_commit();
        }
        Ok(applied)
    }
}

/// Makes the transitions, and returns how many events report them.
async fn move_orders(transaction: &mut PgConnection, new: &[&Event]) -> Result<usize, Error> {
    let answers: Vec<_> = new.iter().filter_map(|event| answer(event)).collect();
    let mut published = vec![];
    if !answers.is_empty() {
        let mut orders = lock(transaction, &answers).await?;
        for answer in &answers {
            published.extend(transition(answer, &mut orders)?);
        }
        write(transaction, &orders, &answers).await?;
        outbox::append(transaction, &published).await?;
    }
    Ok(published.len())
}

fn answer(event: &Event) -> Option<Answer<'_>> {
    let (order_id, trigger, amount) = match &event.body {
        Body::StockReserved(said) => (said.order_id, Trigger::StockReserved, None),
        Body::StockRejected(said) => (said.order_id, Trigger::StockRejected, None),
        Body::StockReleased(said) => (said.order_id, Trigger::StockReleased, None),
        Body::PaymentCaptured(said) => (said.order_id, Trigger::PaymentCaptured, Some(&said.amount)),
        Body::PaymentDeclined(said) => (said.order_id, Trigger::PaymentDeclined, None),
        Body::PaymentRefunded(said) => (said.order_id, Trigger::PaymentRefunded, Some(&said.amount)),
        // Published by this service.
        Body::OrderCreated(_) | Body::OrderConfirmed(_) | Body::OrderCancelled(_) => return None,
    };
    Some(Answer { event, order_id, trigger, amount })
}

/// Locks the orders, sorted by id, and reads them. While the locks are held no client can cancel these orders, and the
/// events that are inserted here get a higher `seq` than those inserted before.
async fn lock(transaction: &mut PgConnection, answers: &[Answer<'_>]) -> Result<HashMap<Uuid, Order>, Error> {
    let ids: Vec<_> = answers.iter().map(|answer| answer.order_id).collect();
    let rows = sqlx::query!(
        "select id, status, version, total_amount, currency from orders where id = any($1) order by id for no key update",
        &ids
    )
    .fetch_all(transaction)
    .await?;
    let mut orders = HashMap::with_capacity(rows.len());
    for row in rows {
        let state = row.status.parse().map_err(|problem: String| Failure::Unexpected(problem.into()))?;
        let total = Money { amount: row.total_amount, currency: row.currency };
        orders.insert(row.id, Order { state, total, version: row.version, cancelled_for: None });
    }
    Ok(orders)
}

/// Makes one transition, and returns the event that it causes.
fn transition(answer: &Answer<'_>, orders: &mut HashMap<Uuid, Order>) -> Result<Option<NewEvent>, Error> {
    let Answer { event, order_id, trigger, amount } = *answer;
    let permanent = |problem: String| Failure::Permanent(problem.into());
    let order =
        orders.get_mut(&order_id).ok_or_else(|| permanent(format!("there is no order {order_id}")))?;
    // Another sum is a defect of billing or of the provider: confirming such an order would hide it.
    if let Some(other) = amount.filter(|amount| **amount != order.total) {
        let total = &order.total;
        return Err(permanent(format!(
            "{trigger:?} is about {other:?}, and order {order_id} about {total:?}"
        ))
        .into());
    }
    let next = order.state.after(trigger).ok_or_else(|| {
        permanent(format!("{trigger:?} is not possible for order {order_id}, which is {}", order.state))
    })?;
    if next == order.state {
        return Ok(None);
    }
    order.state = next;
    let (version, trace) = (order.version + 1, event.trace);
    let new_event = match next {
        OrderState::Confirmed => NewEvent::of(order_id, version, &trace, &OrderConfirmed { order_id }),
        OrderState::Cancelled => {
            let (cause, detail) = cancellation_cause(&event.body);
            order.cancelled_for = Some(cause);
            NewEvent::of(order_id, version, &trace, &OrderCancelled { order_id, cause, detail })
        }
        OrderState::Pending | OrderState::Reserved | OrderState::Paid => return Ok(None),
    };
    order.version += 1;
    Ok(Some(new_event?))
}

/// Why an order is cancelled, for programs and for people.
fn cancellation_cause(body: &Body) -> (Cause, String) {
    match body {
        Body::StockRejected(said) => (
            Cause::OutOfStock,
            format!("{} of {} were ordered, and {} are left", said.wanted, said.sku, said.available),
        ),
        Body::PaymentDeclined(said) => (Cause::PaymentDeclined, said.reason.clone()),
        _ => (Cause::Other, String::new()),
    }
}

/// Updates the orders, and records which service has answered what. A transition without an event leaves the version
/// unchanged: it counts published events.
async fn write(
    transaction: &mut PgConnection,
    orders: &HashMap<Uuid, Order>,
    answers: &[Answer<'_>],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "with moved as (
             update orders
             set status = moved.status, version = moved.version,
                 confirmed_at = case when moved.status = 'confirmed' then clock_timestamp() else confirmed_at end,
                 cancelled_at = case when moved.status = 'cancelled' then clock_timestamp() end,
                 cancelled_for = moved.cause
             from unnest($1::uuid[], $2::text[], $3::int[], $4::text[]) as moved (id, status, version, cause)
             where orders.id = moved.id and orders.status <> moved.status
         )
         insert into answers (order_id, event_id, event_type, source, occurred_at)
         select * from unnest($5::uuid[], $6::uuid[], $7::text[], $8::text[], $9::timestamptz[])",
        &orders.keys().copied().collect::<Vec<_>>(),
        &orders.values().map(|order| order.state.to_string()).collect::<Vec<_>>(),
        &orders.values().map(|order| order.version).collect::<Vec<_>>(),
        &orders
            .values()
            .map(|order| order.cancelled_for.map(|cause| cause.name().to_owned()))
            .collect::<Vec<_>>() as &[Option<String>],
        &answers.iter().map(|answer| answer.order_id).collect::<Vec<_>>(),
        &answers.iter().map(|answer| answer.event.id).collect::<Vec<_>>(),
        &answers.iter().map(|answer| answer.event.event_type.to_owned()).collect::<Vec<_>>(),
        &answers.iter().map(|answer| answer.event.source.to_owned()).collect::<Vec<_>>(),
        &answers.iter().map(|answer| answer.event.time).collect::<Vec<_>>(),
    )
    .execute(transaction)
    .await?;
    Ok(())
}
