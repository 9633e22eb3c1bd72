-- The conservation sum: what clients were promised against what the three services hold. One statement, so all of it
-- is seen in one snapshot. Everything is compared by distinct ids: legal duplicates satisfy a count.
with accepted as (
    -- Acknowledged to a client: the ids are put in place of the word below.
    select distinct id from unnest(ACCEPTED) as acknowledged (id)
), created as (
    select event_id, aggregate_id as order_id, published_at, parked_at, false as discarded from orders.outbox
    where event_type = 'OrderCreated'
    union all
    -- Given up by an operator: it was written, and no effect is owed for it.
    select event_id, aggregate_id, published_at, parked_at, true from orders.outbox_discarded
    where event_type = 'OrderCreated'
), cancelled as (
    select event_id, aggregate_id as order_id, published_at, parked_at, false as discarded from orders.outbox
    where event_type = 'OrderCancelled'
    union all
    select event_id, aggregate_id, published_at, parked_at, true from orders.outbox_discarded
    where event_type = 'OrderCancelled'
), events as (
    select * from created union all select * from cancelled
), erased as (
    -- Published events are erased after a while, and the service writes down up to which moment of publishing. An event
    -- is published after its order was placed, so one of a later order has to be there. For an earlier one the effects
    -- have to stand in: it was erased because it had been published, and published means applied.
    select o.id as order_id
    from orders.orders o
    where o.placed_at < (select max(erased_before) from orders.outbox_retention)
      and not exists (select from created c where c.order_id = o.id)
), cancellation_erased as (
    select o.id as order_id
    from orders.orders o
    where o.cancelled_at < (select max(erased_before) from orders.outbox_retention)
      and not exists (select from cancelled c where c.order_id = o.id)
), published as (
    select order_id, event_id from created where published_at is not null
    union all select order_id, null from erased
), cancellation_published as (
    select order_id, event_id from cancelled where published_at is not null
    union all select order_id, null from cancellation_erased
), forgotten as (
    -- The same for what consumers remember. The record is written before the effect, in one transaction, so the effect
    -- is younger: by a few milliseconds, for which a minute is plenty.
    select (select max(forgotten_before) + interval '1 minute' from inventory.inbox_retention) as inventory,
           (select max(forgotten_before) + interval '1 minute' from billing.inbox_retention) as billing
), aside as (
    -- Dead letters: what is here is not missing. It waits for an operator, or was given up by one.
    select 'inventory' as place, id, event_id, event_type, subject, resolution from inventory.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'billing', id, event_id, event_type, subject, resolution from billing.dead_letters
    where resolution is distinct from 'replayed'
), overtaken as (
    -- A creation that was set aside, or given up, has been overtaken by its cancellation, and that is known. Matched by
    -- the order as well: the event may have been erased since.
    select 'inventory' as place, coalesce(c.order_id, d.subject) as order_id
    from inventory.dead_letters d left join created c using (event_id)
    where d.event_type = 'OrderCreated' or c.order_id is not null
    union all
    select 'billing', coalesce(c.order_id, d.subject)
    from billing.dead_letters d left join created c using (event_id)
    where d.event_type = 'OrderCreated' or c.order_id is not null
    union all
    select place, order_id from created, unnest(array['inventory', 'billing']) as place where discarded
), reserved as (
    select order_id, line_number, count(*) as times, min(sku) as sku, min(quantity) as quantity
    from inventory.reservations group by order_id, line_number
), invoiced as (
    select order_id, count(*) as times, min(amount) as amount from billing.invoices group by order_id
), credited as (
    select order_id, count(*) as times, min(amount) as amount from billing.credit_notes group by order_id
), wrong (kind, place, what, id) as (
    select 'missing', 'orders', 'acknowledged, but there is no such order', a.id::text
    from accepted a where not exists (select from orders.orders o where o.id = a.id)
    union all
    select 'missing', 'orders', 'order without its event', o.id::text
    from orders.orders o
    where not exists (select from created c where c.order_id = o.id)
      and not exists (select from erased e where e.order_id = o.id)
    union all
    select 'missing', 'inventory', 'published, but a line of the order is not reserved', l.order_id::text
    from orders.order_lines l join published p using (order_id)
    where not exists (select from reserved r where (r.order_id, r.line_number) = (l.order_id, l.line_number))
      and not exists (select from aside d where d.place = 'inventory' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      -- Created after it was cancelled: rightly nothing. Whether that may be is asked below.
      and not exists (select from inventory.cancelled_orders off where off.order_id = l.order_id and off.came_first)
    union all
    select 'missing', 'billing', 'published, but the order is not invoiced', p.order_id::text
    from published p
    where not exists (select from invoiced i where i.order_id = p.order_id)
      and not exists (select from aside d where d.place = 'billing' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      and not exists (select from billing.cancelled_orders off where off.order_id = p.order_id and off.came_first)
    union all
    select 'missing', 'orders', 'cancelled order without its event', o.id::text
    from orders.orders o
    where o.status = 'cancelled'
      and not exists (select from cancelled c where c.order_id = o.id)
      and not exists (select from cancellation_erased e where e.order_id = o.id)
    union all
    select 'missing', 'inventory', 'cancellation published, but the stock is not released', c.order_id::text
    from cancellation_published c join inventory.reservations r using (order_id)
    where r.released_by is null
      and not exists (select from aside d where d.place = 'inventory' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'missing', 'billing', 'cancellation published, but the invoice is not credited', c.order_id::text
    from cancellation_published c join invoiced i using (order_id)
    where not exists (select from credited n where n.order_id = c.order_id)
      and not exists (select from aside d where d.place = 'billing' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'disorder', 'inventory', 'cancelled before it was created', off.order_id::text
    from inventory.cancelled_orders off
    where off.came_first
      and not exists (select from overtaken o where o.place = 'inventory' and o.order_id = off.order_id)
    union all
    select 'disorder', 'billing', 'cancelled before it was created', off.order_id::text
    from billing.cancelled_orders off
    where off.came_first
      and not exists (select from overtaken o where o.place = 'billing' and o.order_id = off.order_id)
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
    select 'doubled', 'billing', 'invoice credited more than once', order_id::text
    from credited where times > 1
    union all
    select 'phantom', 'orders', 'cancellation of an order that is not cancelled', c.order_id::text
    from cancelled c
    where not exists (select from orders.orders o where o.id = c.order_id and o.status = 'cancelled')
    union all
    select 'phantom', 'inventory', 'stock released without a cancellation', r.order_id::text
    from inventory.reservations r
    where r.released_by is not null
      and not exists (select from cancelled c where c.event_id = r.released_by)
      and not exists (select from cancellation_erased e where e.order_id = r.order_id)
    union all
    select 'phantom', 'billing', 'credit note without a cancellation', n.order_id::text
    from billing.credit_notes n
    where not exists (select from cancelled c where c.event_id = n.event_id)
      and not exists (select from cancellation_erased e where e.order_id = n.order_id)
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
    from inventory.reservations e
    where not exists (select from created c where c.event_id = e.event_id)
      and not exists (select from erased g where g.order_id = e.order_id)
    union all
    select 'phantom', 'inventory', 'reservation without a record of its event', e.order_id::text
    from inventory.reservations e
    where not exists (select from inventory.processed_events p where p.event_id = e.event_id)
      and e.reserved_at >= coalesce((select inventory from forgotten), '-infinity')
    union all
    select 'phantom', 'billing', 'invoice without such an order', i.order_id::text
    from invoiced i where not exists (select from orders.orders o where o.id = i.order_id)
    union all
    select 'phantom', 'billing', 'invoice by an event that was never written', e.order_id::text
    from billing.invoices e
    where not exists (select from created c where c.event_id = e.event_id)
      and not exists (select from erased g where g.order_id = e.order_id)
    union all
    select 'phantom', 'billing', 'invoice without a record of its event', e.order_id::text
    from billing.invoices e
    where not exists (select from billing.processed_events p where p.event_id = e.event_id)
      and e.issued_at >= coalesce((select billing from forgotten), '-infinity')
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
    where s.reserved <> (
        select coalesce(sum(r.quantity), 0) from inventory.reservations r
        where r.sku = s.sku and r.released_by is null)
    union all
    select 'sums', 'billing', 'credit note over another amount than the invoice', n.order_id::text
    from credited n join invoiced i using (order_id) where n.amount <> i.amount
    union all
    select 'sums', 'billing', 'invoice whose amount is not the total of the order', o.id::text
    from orders.orders o join invoiced i on i.order_id = o.id
    where i.amount <> o.total_amount
)
select json_build_object(
    'acknowledged', (select count(*) from accepted),
    'orders', (select count(*) from orders.orders),
    'events', (select count(*) from events),
    'cancelled', (select count(*) from cancelled),
    'owed', (select count(*) from events where published_at is null and parked_at is null and not discarded),
    'parked', (select count(*) from events where parked_at is not null and not discarded),
    'aside', coalesce((
        select json_agg(json_build_object('place', place, 'discarded', discarded, 'count', n, 'first', ids))
        from (
            select place, discarded, count(*) as n,
                   (array_agg(place || '/' || name order by name))[1:5] as ids
            from (
                select place, resolution is not null as discarded, id::text as name from aside
                union all
                select 'orders', discarded, event_id::text from events where parked_at is not null
            ) as each
            group by place, discarded order by place, discarded
        ) as grouped
    ), '[]'),
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
