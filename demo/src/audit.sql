-- The conservation sum: what clients were promised against what the three services hold. One statement, so all of it
-- is seen in one snapshot. Everything is compared by distinct ids: legal duplicates satisfy a count.
with accepted as (
    -- Acknowledged to a client: the ids are put in place of the word below.
    select distinct id from unnest(ACCEPTED) as acknowledged (id)
), created as (
    select event_id, aggregate_id as order_id, published_at, parked_at from orders.outbox
    where event_type = 'OrderCreated'
), reserved as (
    select order_id, line_number, count(*) as times, min(sku) as sku, min(quantity) as quantity
    from inventory.reservations group by order_id, line_number
), invoiced as (
    select order_id, count(*) as times, min(amount) as amount from billing.invoices group by order_id
), wrong (kind, place, what, id) as (
    select 'missing', 'orders', 'acknowledged, but there is no such order', a.id::text
    from accepted a where not exists (select from orders.orders o where o.id = a.id)
    union all
    select 'missing', 'orders', 'order without its event', o.id::text
    from orders.orders o where not exists (select from created c where c.order_id = o.id)
    union all
    select 'missing', 'inventory', 'published, but a line of the order is not reserved', l.order_id::text
    from orders.order_lines l join created c using (order_id)
    where c.published_at is not null
      and not exists (select from reserved r where (r.order_id, r.line_number) = (l.order_id, l.line_number))
    union all
    select 'missing', 'billing', 'published, but the order is not invoiced', c.order_id::text
    from created c
    where c.published_at is not null and not exists (select from invoiced i where i.order_id = c.order_id)
    union all
    select 'doubled', 'orders', 'order with two creation events', order_id::text
    from created group by order_id having count(*) > 1
    union all
    select 'doubled', 'inventory', 'order line reserved more than once', order_id::text
    from reserved where times > 1
    union all
    select 'doubled', 'inventory', 'order applied under two event ids', order_id::text
    from inventory.reservations group by order_id having count(distinct event_id) > 1
    union all
    select 'doubled', 'billing', 'order invoiced more than once', order_id::text
    from invoiced where times > 1
    union all
    select 'phantom', 'orders', 'event without its order', c.order_id::text
    from created c where not exists (select from orders.orders o where o.id = c.order_id)
    union all
    select 'phantom', 'inventory', 'reservation without such an order line', r.order_id::text
    from reserved r
    where not exists (
        select from orders.order_lines l where (l.order_id, l.line_number) = (r.order_id, r.line_number))
    union all
    select 'phantom', 'inventory', 'reservation by an event that was never written', e.order_id::text
    from inventory.reservations e where not exists (select from created c where c.event_id = e.event_id)
    union all
    select 'phantom', 'inventory', 'reservation without a record of its event', e.order_id::text
    from inventory.reservations e
    where not exists (select from inventory.processed_events p where p.event_id = e.event_id)
    union all
    select 'phantom', 'billing', 'invoice without such an order', i.order_id::text
    from invoiced i where not exists (select from orders.orders o where o.id = i.order_id)
    union all
    select 'phantom', 'billing', 'invoice by an event that was never written', e.order_id::text
    from billing.invoices e where not exists (select from created c where c.event_id = e.event_id)
    union all
    select 'phantom', 'billing', 'invoice without a record of its event', e.order_id::text
    from billing.invoices e
    where not exists (select from billing.processed_events p where p.event_id = e.event_id)
    union all
    select 'sums', 'orders', 'total that is not the sum of the lines', o.id::text
    from orders.orders o
    where o.total_amount is distinct from (
        select sum(l.quantity * l.unit_price) from orders.order_lines l where l.order_id = o.id)
    union all
    select 'sums', 'inventory', 'reserved something else than was ordered', l.order_id::text
    from orders.order_lines l join reserved r using (order_id, line_number)
    where (l.sku, l.quantity) is distinct from (r.sku, r.quantity)
    union all
    select 'sums', 'inventory', 'stock whose `reserved` is not the sum of its reservations', s.sku
    from inventory.stock s
    where s.reserved <> (select coalesce(sum(r.quantity), 0) from inventory.reservations r where r.sku = s.sku)
    union all
    select 'sums', 'billing', 'invoice whose amount is not the total of the order', o.id::text
    from orders.orders o join invoiced i on i.order_id = o.id
    where i.amount <> o.total_amount
)
select json_build_object(
    'acknowledged', (select count(*) from accepted),
    'orders', (select count(*) from orders.orders),
    'events', (select count(*) from created),
    'owed', (select count(*) from created where published_at is null and parked_at is null),
    'parked', (select count(*) from created where parked_at is not null),
    'lines', (select count(*) from orders.order_lines),
    'linesReserved', (select count(*) from reserved),
    'ordersReserved', (select count(distinct order_id) from reserved),
    'ordersInvoiced', (select count(*) from invoiced),
    'findings', coalesce((
        select json_agg(json_build_object('kind', kind, 'place', place, 'what', what, 'count', n, 'first', ids))
        from (
            select kind, place, what, count(distinct id) as n, (array_agg(distinct id))[1:5] as ids
            from wrong group by kind, place, what order by kind, place, what
        ) as grouped
    ), '[]')
)::text
