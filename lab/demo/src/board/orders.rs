//! One order, as its rows tell it.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::http;
use crate::running_system::RunningSystem;

use super::load::BoardLoad;

/// An order that was placed.
#[derive(Debug, Serialize)]
pub(crate) struct Placed {
    id: Uuid,
    milliseconds: f64,
}

/// Places an order that can be confirmed.
pub(crate) async fn place(system: &RunningSystem, load: &BoardLoad) -> Result<Placed> {
    let body = json!({
        "customerId": Uuid::new_v4(),
        "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
    });
    let sent = std::time::Instant::now();
    let id = http::place(http::order_request(system.orders_url(), &body)?).await?;
    load.record(id);
    Ok(Placed { id, milliseconds: sent.elapsed().as_secs_f64() * 1e3 })
}

/// What has happened to an order so far: each step with the milliseconds since it was placed, by the databases' clocks.
pub(crate) async fn story(system: &RunningSystem, id: Uuid) -> Result<Value> {
    let query = format!(
        "with step (who, what, event, at) as (
             select 'orders', 'wrote the order and OrderCreated, in one commit', 'OrderCreated', created_at
             from orders.outbox where aggregate_id = '{id}' and event_type = 'OrderCreated'
             union all
             select 'relay of orders', 'marked ' || event_type || ' as published', event_type, published_at
             from orders.outbox where aggregate_id = '{id}' and published_at is not null
             union all
             select 'inventory', case state when 'rejected' then 'rejected the order: out of stock'
                                 else 'reserved the stock' end, 'OrderCreated', decided_at
             from inventory.reservations where order_id = '{id}'
             union all
             select 'inventory', 'released the stock', 'OrderCancelled', released_at
             from inventory.reservations where order_id = '{id}' and released_at is not null
             union all
             select 'relay of inventory', 'marked ' || e.event_type || ' as published', e.event_type, e.published_at
             from inventory.outbox e join inventory.reservations r on r.id = e.aggregate_id
             where r.order_id = '{id}' and e.published_at is not null
             union all
             select 'billing', 'recorded the payment', 'OrderCreated', asked_at
             from billing.payments where order_id = '{id}'
             union all
             select 'payment provider', case when charge_id is null then 'declined' else 'charged the customer' end,
                    'OrderCreated', answered_at
             from billing.payments where order_id = '{id}' and answered_at is not null
             union all
             select 'payment provider', 'refunded the charge', 'OrderCancelled', refunded_at
             from billing.payments where order_id = '{id}' and refunded_at is not null
             union all
             select 'relay of billing', 'marked ' || e.event_type || ' as published', e.event_type, e.published_at
             from billing.outbox e join billing.payments p on p.id = e.aggregate_id
             where p.order_id = '{id}' and e.published_at is not null
             union all
             select 'orders', 'applied ' || event_type, event_type, applied_at
             from orders.answers where order_id = '{id}'
             union all
             select 'orders', 'confirmed the order', 'OrderConfirmed', confirmed_at
             from orders.orders where id = '{id}' and confirmed_at is not null
             union all
             select 'orders', 'cancelled the order (' || cancelled_for || ')', 'OrderCancelled', cancelled_at
             from orders.orders where id = '{id}' and cancelled_at is not null
         )
         select coalesce((
             select json_build_object(
                 'id', o.id, 'status', o.status, 'placedAt', o.placed_at,
                 'steps', (select json_agg(json_build_object('who', who, 'what', what, 'event', event,
                                  'at', extract(epoch from at - o.placed_at) * 1000) order by at) from step))
             from orders.orders o where o.id = '{id}'), 'null')::text"
    );
    Ok(serde_json::from_str(&system.read(&query).await?)?)
}
