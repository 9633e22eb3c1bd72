-- The life of one order: each step that a row records, with the milliseconds since the order was placed. `way`: whether an
-- event left for the broker ('out') or came from it ('in').
with step (who, what, at, way) as (
    select 'orders', 'wrote the order and OrderCreated, in one commit', created_at, null
    from orders.outbox where aggregate_id = PLACED and event_type = 'OrderCreated'
    union all
    select 'relay of orders', 'marked ' || event_type || ' as published', published_at, 'out'
    from orders.outbox where aggregate_id = PLACED and published_at is not null
    union all
    select 'inventory', case state when 'rejected' then 'rejected the order: out of stock'
                              else 'reserved the stock' end, decided_at, 'in'
    from inventory.reservations where order_id = PLACED
    union all
    select 'inventory', 'released the stock', released_at, 'in'
    from inventory.reservations where order_id = PLACED and released_at is not null
    union all
    select 'relay of inventory', 'marked ' || e.event_type || ' as published', e.published_at, 'out'
    from inventory.outbox e join inventory.reservations r on r.id = e.aggregate_id
    where r.order_id = PLACED and e.published_at is not null
    union all
    select 'billing', 'recorded the payment', asked_at, 'in'
    from billing.payments where order_id = PLACED
    union all
    select 'payment provider', case when charge_id is null then 'declined' else 'charged the customer' end, answered_at, null
    from billing.payments where order_id = PLACED and answered_at is not null
    union all
    select 'payment provider', 'refunded the charge', refunded_at, null
    from billing.payments where order_id = PLACED and refunded_at is not null
    union all
    select 'relay of billing', 'marked ' || e.event_type || ' as published', e.published_at, 'out'
    from billing.outbox e join billing.payments p on p.id = e.aggregate_id
    where p.order_id = PLACED and e.published_at is not null
    union all
    select 'orders', 'applied ' || event_type, applied_at, 'in'
    from orders.answers where order_id = PLACED
    union all
    select 'orders', 'confirmed the order', confirmed_at, null
    from orders.orders where id = PLACED and confirmed_at is not null
    union all
    select 'orders', 'cancelled the order (' || cancelled_for || ')', cancelled_at, null
    from orders.orders where id = PLACED and cancelled_at is not null
)
select coalesce((
    select json_build_object(
        'id', o.id, 'status', o.status, 'placedAt', o.placed_at,
        -- A cancelled order has ended when no stock or money is held for it any more.
        'ended', o.status = 'confirmed' or o.status = 'cancelled'
            and exists (select from inventory.reservations where order_id = o.id and state <> 'held')
            and exists (select from billing.payments
                        where order_id = o.id and state not in ('asked', 'captured', 'refunding')),
        'steps', (select json_agg(json_build_object('who', who, 'what', what, 'way', way,
                         'at', extract(epoch from at - o.placed_at) * 1000) order by at) from step))
    from orders.orders o where o.id = PLACED), 'null')::text
