-- The conservation sum: what clients were promised against what the three services hold, and what the payment provider
-- says. One statement, so all of it is seen in one snapshot. Everything is compared by distinct ids: legal duplicates
-- satisfy a count.
with accepted as (
    -- Acknowledged to a client: the ids are put in place of the word below.
    select distinct id from unnest(ACCEPTED) as acknowledged (id)
), events as (
    -- What each service has to say, said or not, and what an operator has given up of it: no effect is owed for that.
    select 'orders' as place, event_id, event_type, aggregate_id, published_at, parked_at, false as discarded
    from orders.outbox
    union all
    select 'orders', event_id, event_type, aggregate_id, published_at, parked_at, true from orders.outbox_discarded
    union all
    select 'inventory', event_id, event_type, aggregate_id, published_at, parked_at, false from inventory.outbox
    union all
    select 'inventory', event_id, event_type, aggregate_id, published_at, parked_at, true
    from inventory.outbox_discarded
    union all
    select 'billing', event_id, event_type, aggregate_id, published_at, parked_at, false from billing.outbox
    union all
    select 'billing', event_id, event_type, aggregate_id, published_at, parked_at, true from billing.outbox_discarded
), created as (
    select event_id, aggregate_id as order_id, published_at, discarded from events where event_type = 'OrderCreated'
    union all
    -- Only for variants of the order service that keep no outbox, and have nothing to show for what they say: each order
    -- counts as published when it was placed, by whatever event arrived.
    select distinct coalesce(r.event_id, p.event_id, o.id), o.id, o.placed_at, false
    from orders.orders o
    left join inventory.reservations r on r.order_id = o.id
    left join billing.payments p on p.order_id = o.id
    where UNWRITTEN
), confirmed as (
    select event_id, aggregate_id as order_id from events where event_type = 'OrderConfirmed'
), cancelled as (
    select event_id, aggregate_id as order_id, published_at from events where event_type = 'OrderCancelled'
), answered as (
    -- Which order an answer is about.
    select e.place, e.event_id, r.order_id, e.published_at, e.parked_at, e.discarded
    from events e join inventory.reservations r on r.id = e.aggregate_id where e.place = 'inventory'
    union all
    select e.place, e.event_id, p.order_id, e.published_at, e.parked_at, e.discarded
    from events e join billing.payments p on p.id = e.aggregate_id where e.place = 'billing'
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
), creation_published as (
    select order_id, event_id from created where published_at is not null
    union all select order_id, null from erased
), cancellation_published as (
    select order_id, event_id from cancelled where published_at is not null
    union all select order_id, null from cancellation_erased
), forgotten as (
    -- The same for what consumers remember. The record is written before the effect, in one transaction, so the effect
    -- is younger: by a few milliseconds, for which a minute is plenty. A clock of another machine is allowed as much.
    select (select max(forgotten_before) + interval '1 minute' from orders.inbox_retention) as orders,
           (select max(forgotten_before) + interval '1 minute' from inventory.inbox_retention) as inventory,
           (select max(forgotten_before) + interval '1 minute' from billing.inbox_retention) as billing,
           (select max(erased_before) + interval '1 minute' from inventory.outbox_retention) as stock_answers,
           (select max(erased_before) + interval '1 minute' from billing.outbox_retention) as payment_answers
), aside as (
    -- Dead letters: what is here is not missing. It waits for an operator, or was given up by one.
    select 'orders' as place, id, event_id, event_type, subject, resolution from orders.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'inventory', id, event_id, event_type, subject, resolution from inventory.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'billing', id, event_id, event_type, subject, resolution from billing.dead_letters
    where resolution is distinct from 'replayed'
), stuck as (
    -- Orders that cannot go on by themselves, because one of their events was set aside or given up.
    select coalesce(c.order_id, d.subject) as order_id
    from aside d left join created c using (event_id) where d.place <> 'orders'
    union
    select a.order_id from aside d join answered a using (event_id) where d.place = 'orders'
    union
    select aggregate_id from events where place = 'orders' and (parked_at is not null or discarded)
    union
    select order_id from answered where parked_at is not null or discarded
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
), heard as (
    select order_id,
           count(*) filter (where event_type = 'StockReserved') as reserved,
           count(*) filter (where event_type = 'PaymentCaptured') as captured,
           count(*) filter (where event_type in ('StockRejected', 'PaymentDeclined')) as noes
    from orders.answers group by order_id
), open_order as (
    select id from orders.orders where status in ('pending', 'reserved', 'paid')
), charge as (
    select reference as order_id, count(*) as times, sum(amount) as amount, sum(refunded) as refunded
    from provider.charges where status = 'captured' group by reference
), under_way as (
    select (select count(*) from events where published_at is null and parked_at is null and not discarded) as owed,
           (select count(*) from billing.payments where state in ('asked', 'refunding')) as payments_owed,
           (select count(*) from open_order where id not in (select order_id from stuck where order_id is not null))
               as open_orders
), going as (
    -- All others: the sums are drawn over these.
    select id, status, total_amount from orders.orders
    where id not in (select order_id from stuck where order_id is not null)
), sums as (
    select (select coalesce(sum(c.amount - c.refunded), 0) from charge c join going on going.id = c.order_id) as paid,
           (select coalesce(sum(total_amount), 0) from going where status = 'confirmed') as cost,
           (select coalesce(sum(l.quantity), 0)
            from inventory.reservation_lines l join inventory.reservations r on r.id = l.reservation_id
            join going on going.id = r.order_id
            where r.state = 'held') as held,
           (select coalesce(sum(l.quantity), 0) from orders.order_lines l join going on going.id = l.order_id
            where going.status = 'confirmed') as ordered
), totals as (
    select (select coalesce(sum(amount), 0) from charge)::bigint as charged,
           (select coalesce(sum(amount), 0) from provider.refunds)::bigint as refunded,
           (select coalesce(sum(total_amount), 0) from orders.orders where status = 'confirmed')::bigint
               as confirmed_total,
           (select coalesce(sum(reserved), 0) from inventory.stock)::bigint as put_aside,
           (select coalesce(sum(l.quantity), 0)
            from orders.order_lines l join orders.orders o on o.id = l.order_id
            where o.status = 'confirmed')::bigint as confirmed_pieces
), lacking (kind, place, what, id) as (
    select 'missing', 'orders', 'acknowledged, but there is no such order', a.id::text
    from accepted a where not exists (select from orders.orders o where o.id = a.id)
    union all
    select 'missing', 'orders', 'order without its event', o.id::text
    from orders.orders o
    where not exists (select from created c where c.order_id = o.id)
      and not exists (select from erased e where e.order_id = o.id)
    union all
    select 'missing', 'orders', 'confirmed order without its event', o.id::text
    from orders.orders o
    where o.confirmed_at is not null
      and not exists (select from confirmed c where c.order_id = o.id)
      and o.confirmed_at >= (select max(erased_before) from orders.outbox_retention)
    union all
    select 'missing', 'orders', 'cancelled order without its event', o.id::text
    from orders.orders o
    where o.status = 'cancelled'
      and not exists (select from cancelled c where c.order_id = o.id)
      and not exists (select from cancellation_erased e where e.order_id = o.id)
    union all
    select 'missing', 'inventory', 'published, but the order is not answered', p.order_id::text
    from creation_published p
    where not exists (select from inventory.reservations r where r.order_id = p.order_id)
      and not exists (select from aside d where d.place = 'inventory' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      -- Created after it was cancelled: rightly nothing. Whether that may be is asked below.
      and not exists (select from inventory.cancelled_orders off where off.order_id = p.order_id and off.came_first)
    union all
    select 'missing', 'billing', 'published, but there is no payment', p.order_id::text
    from creation_published p
    where not exists (select from billing.payments i where i.order_id = p.order_id)
      and not exists (select from aside d where d.place = 'billing' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      and not exists (select from billing.cancelled_orders off where off.order_id = p.order_id and off.came_first)
    union all
    select 'missing', 'inventory', 'cancellation published, but the stock is not released', c.order_id::text
    from cancellation_published c join inventory.reservations r using (order_id)
    where r.state = 'held'
      and not exists (select from aside d where d.place = 'inventory' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'missing', 'billing', 'cancellation published, but the payment is not taken back', c.order_id::text
    from cancellation_published c join billing.payments p using (order_id)
    where p.cancelled_by is null
      and not exists (select from aside d where d.place = 'billing' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'missing', 'billing', 'cancellation known, but the charge is not given back', p.order_id::text
    from billing.payments p where p.cancelled_by is not null and p.state = 'captured'
    union all
    -- What a service has done, it has said, in the same transaction.
    select 'missing', 'inventory', 'reservation without its event', r.order_id::text
    from inventory.reservations r
    where r.decided_at >= (select max(erased_before) from inventory.outbox_retention)
      and not exists (
          select from events e where e.aggregate_id = r.id and e.event_type in ('StockReserved', 'StockRejected'))
    union all
    select 'missing', 'inventory', 'release without its event', r.order_id::text
    from inventory.reservations r
    where r.released_at >= (select max(erased_before) from inventory.outbox_retention)
      and not exists (select from events e where e.aggregate_id = r.id and e.event_type = 'StockReleased')
    union all
    select 'missing', 'billing', 'payment without its event', p.order_id::text
    from billing.payments p
    where p.answered_at >= (select max(erased_before) from billing.outbox_retention)
      and not exists (
          select from events e
          where e.aggregate_id = p.id
            and e.event_type = case when p.charge_id is null then 'PaymentDeclined' else 'PaymentCaptured' end)
    union all
    select 'missing', 'billing', 'refund without its event', p.order_id::text
    from billing.payments p
    where p.refunded_at >= (select max(erased_before) from billing.outbox_retention)
      and not exists (select from events e where e.aggregate_id = p.id and e.event_type = 'PaymentRefunded')
    union all
    select 'missing', a.place, 'answered, but the order has not heard of it', a.order_id::text
    from answered a
    where a.published_at is not null
      and not exists (select from orders.answers h where h.event_id = a.event_id)
      and not exists (select from aside d where d.place = 'orders' and d.event_id = a.event_id)
), wrong as (
    select * from lacking
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
    select 'doubled', 'orders', 'order confirmed more than once', order_id::text
    from confirmed group by order_id having count(*) > 1
    union all
    select 'doubled', 'orders', 'answer taken more than once', order_id::text
    from orders.answers group by order_id, event_type having count(*) > 1
    union all
    select 'doubled', 'inventory', 'order answered more than once', order_id::text
    from inventory.reservations group by order_id having count(*) > 1
    union all
    select 'doubled', 'billing', 'order with more than one payment', order_id::text
    from billing.payments group by order_id having count(*) > 1
    union all
    select 'doubled', 'provider', 'customer charged more than once', order_id::text from charge where times > 1
    union all
    select 'doubled', 'provider', 'charge refunded more than once', c.reference::text
    from provider.refunds r join provider.charges c on c.id = r.charge_id
    group by c.id, c.reference having count(*) > 1
    union all
    select 'phantom', 'orders', 'event without its order', c.order_id::text
    from created c where not exists (select from orders.orders o where o.id = c.order_id)
    union all
    select 'phantom', 'orders', 'confirmation of an order that is not confirmed', c.order_id::text
    from confirmed c
    where not exists (select from orders.orders o where o.id = c.order_id and o.confirmed_at is not null)
    union all
    select 'phantom', 'orders', 'cancellation of an order that is not cancelled', c.order_id::text
    from cancelled c
    where not exists (select from orders.orders o where o.id = c.order_id and o.status = 'cancelled')
    union all
    select 'phantom', 'orders', 'confirmed without both answers', o.id::text
    from orders.orders o left join heard h on h.order_id = o.id
    where o.confirmed_at is not null and (coalesce(h.reserved, 0) = 0 or coalesce(h.captured, 0) = 0)
    union all
    select 'phantom', 'orders', 'answer that nobody gave', h.order_id::text
    from orders.answers h, forgotten
    where not exists (select from events e where e.event_id = h.event_id)
      and h.occurred_at >= case h.source when '/inventory' then stock_answers else payment_answers end
    union all
    select 'phantom', 'orders', 'answer without a record of its event', h.order_id::text
    from orders.answers h
    where not exists (select from orders.processed_events p where p.event_id = h.event_id)
      and h.applied_at >= coalesce((select orders from forgotten), '-infinity')
    union all
    select 'phantom', 'inventory', 'stock released without a cancellation', r.order_id::text
    from inventory.reservations r
    where r.released_by is not null
      and not exists (select from cancelled c where c.event_id = r.released_by)
      and not exists (select from cancellation_erased e where e.order_id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation without such an order', r.order_id::text
    from inventory.reservations r where not exists (select from orders.orders o where o.id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation by an event that was never written', r.order_id::text
    from inventory.reservations r
    where not exists (select from created c where c.event_id = r.event_id)
      and not exists (select from erased g where g.order_id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation without a record of its event', r.order_id::text
    from inventory.reservations r
    where not exists (select from inventory.processed_events p where p.event_id = r.event_id)
      and r.decided_at >= coalesce((select inventory from forgotten), '-infinity')
    union all
    select 'phantom', 'billing', 'payment taken back without a cancellation', p.order_id::text
    from billing.payments p
    where p.cancelled_by is not null
      and not exists (select from cancelled c where c.event_id = p.cancelled_by)
      and not exists (select from cancellation_erased e where e.order_id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment without such an order', p.order_id::text
    from billing.payments p where not exists (select from orders.orders o where o.id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment by an event that was never written', p.order_id::text
    from billing.payments p
    where not exists (select from created c where c.event_id = p.event_id)
      and not exists (select from erased g where g.order_id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment without a record of its event', p.order_id::text
    from billing.payments p
    where not exists (select from billing.processed_events e where e.event_id = p.event_id)
      and p.asked_at >= coalesce((select billing from forgotten), '-infinity')
    union all
    select 'phantom', 'provider', 'charge without a payment', c.order_id::text
    from charge c where not exists (select from billing.payments p where p.order_id = c.order_id)
    union all
    select 'phantom', 'provider', 'refund that was not asked for', c.order_id::text
    from charge c join billing.payments p using (order_id)
    where c.refunded > 0 and p.state not in ('refunding', 'refunded')
    union all
    select 'sums', 'orders', 'total that is not the sum of the lines', o.id::text
    from orders.orders o
    where o.total_amount is distinct from (
        select sum(l.quantity * l.unit_price) from orders.order_lines l where l.order_id = o.id)
    union all
    select 'sums', 'orders', 'answered, and still open', o.id::text
    from open_order o join heard h on h.order_id = o.id
    where h.noes > 0 or (h.reserved > 0 and h.captured > 0)
    union all
    select 'sums', 'inventory', 'put aside something else than was ordered', r.order_id::text
    from inventory.reservations r
    join orders.order_lines l on l.order_id = r.order_id
    left join inventory.reservation_lines h on (h.reservation_id, h.line_number) = (r.id, l.line_number)
    where r.state <> 'rejected' and (l.sku, l.quantity) is distinct from (h.sku, h.quantity)
    union all
    select 'sums', 'inventory', 'put aside more lines than were ordered', r.order_id::text
    from inventory.reservations r
    join inventory.reservation_lines h on h.reservation_id = r.id
    left join orders.order_lines l on (l.order_id, l.line_number) = (r.order_id, h.line_number)
    where l.order_id is null or r.state = 'rejected'
    union all
    select 'sums', 'inventory', 'stock whose `reserved` is not the sum of its reservations', s.sku
    from inventory.stock s
    where s.reserved <> (
        select coalesce(sum(l.quantity), 0)
        from inventory.reservation_lines l join inventory.reservations r on r.id = l.reservation_id
        where l.sku = s.sku and r.state = 'held')
    union all
    select 'sums', 'inventory', 'confirmed, but nothing is put aside', o.id::text
    from orders.orders o
    where o.status = 'confirmed'
      and not exists (select from inventory.reservations r where r.order_id = o.id and r.state = 'held')
    union all
    select 'sums', 'billing', 'payment that is not the total of the order', o.id::text
    from orders.orders o join billing.payments p on p.order_id = o.id
    where p.amount <> o.total_amount
    union all
    select 'sums', 'billing', 'confirmed, but not paid', o.id::text
    from orders.orders o
    where o.status = 'confirmed'
      and not exists (select from billing.payments p where p.order_id = o.id and p.state = 'captured')
    union all
    select 'sums', 'provider', 'charged, and billing believes that it was not', c.order_id::text
    from charge c join billing.payments p using (order_id) where p.state in ('declined', 'void')
    union all
    select 'sums', 'provider', 'billing holds a charge that the provider does not know like that', p.order_id::text
    from billing.payments p
    where p.charge_id is not null
      and not exists (
          select from provider.charges c
          where (c.id, c.reference, c.amount, c.status) = (p.charge_id, p.order_id, p.amount, 'captured'))
    union all
    select 'sums', 'provider', 'billing holds a refund that the provider does not know like that', p.order_id::text
    from billing.payments p
    where p.refund_id is not null
      and not exists (
          select from provider.refunds r
          where (r.id, r.charge_id, r.amount) = (p.refund_id, p.charge_id, p.amount))
    union all
    -- The sums of all orders, which follow from the above if that is complete. Only when nothing is under way, in a queue
    -- for one: until then money and stock are ahead of the orders that they are for, or behind.
    select 'sums', 'provider', 'charged minus refunded is not what the confirmed orders cost', 'all orders'
    from sums, under_way
    where (owed, payments_owed, open_orders) = (0, 0, 0) and not exists (select from lacking) and paid <> cost
    union all
    select 'sums', 'inventory', 'the pieces put aside are not those of the confirmed orders', 'all orders'
    from sums, under_way
    where (owed, payments_owed, open_orders) = (0, 0, 0) and not exists (select from lacking) and held <> ordered
)
select json_build_object(
    'acknowledged', (select count(*) from accepted),
    'orders', (select count(*) from orders.orders),
    'confirmed', (select count(*) from orders.orders where status = 'confirmed'),
    'cancelled', (select count(*) from orders.orders where status = 'cancelled'),
    'open', under_way.open_orders,
    'events', (select count(*) from events),
    'owed', under_way.owed,
    'paymentsOwed', under_way.payments_owed,
    'parked', (select count(*) from events where parked_at is not null and not discarded),
    'aside', coalesce((
        select json_agg(json_build_object('place', place, 'discarded', discarded, 'count', n, 'first', ids))
        from (
            select place, discarded, count(*) as n,
                   (array_agg(place || '/' || name order by name))[1:5] as ids
            from (
                select place, resolution is not null as discarded, id::text as name from aside
                union all
                select place, discarded, event_id::text from events where parked_at is not null
            ) as each
            group by place, discarded order by place, discarded
        ) as grouped
    ), '[]'),
    'inInventory', (select count(distinct order_id) from inventory.reservations),
    'inBilling', (select count(distinct order_id) from billing.payments),
    'charges', (select count(*) from charge),
    'charged', charged, 'refunded', refunded, 'confirmedTotal', confirmed_total,
    'putAside', put_aside, 'confirmedPieces', confirmed_pieces,
    'findings', coalesce((
        select json_agg(json_build_object('kind', kind, 'place', place, 'what', what, 'count', n, 'first', ids))
        from (
            select kind, place, what, count(distinct id) as n, (array_agg(distinct id))[1:10000] as ids
            from wrong group by kind, place, what order by kind, place, what
        ) as grouped
    ), '[]')
)::text
from under_way, totals
