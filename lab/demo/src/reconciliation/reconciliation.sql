-- The reconciliation: compares the acknowledged orders with the records of the three services and of the payment
-- provider. It is one statement, so it reads everything in one snapshot. It compares distinct ids: duplicates are
-- allowed, so counts of rows would be satisfied by a duplicate in place of a missing row.
with acknowledged as (
    -- The orders that a client has received a 201 for. The caller replaces the word by the ids.
    select distinct id from unnest(ACKNOWLEDGED) as ids (id)
), events as (
    -- The events of each service, published or not. Those that an operator has discarded are expected to have no
    -- effect.
    select 'orders' as place, event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, false as discarded
    from orders.outbox
    union all
    select 'orders', event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, true from orders.outbox_discarded
    union all
    select 'inventory', event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, false from inventory.outbox
    union all
    select 'inventory', event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, true
    from inventory.outbox_discarded
    union all
    select 'billing', event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, false from billing.outbox
    union all
    select 'billing', event_id, event_type, aggregate_id, aggregate_version, created_at, published_at, parked_at, true from billing.outbox_discarded
), created as (
    select event_id, aggregate_id as order_id, published_at, discarded from events where event_type = 'OrderCreated'
    union all
    -- Only for variants of the order service that have no outbox, and so no record of what they published. Each order
    -- counts as published when it was placed, by whatever event was applied.
    select distinct coalesce(r.event_id, p.event_id, o.id), o.id, o.placed_at, false
    from orders.orders o
    left join inventory.reservations r on r.order_id = o.id
    left join billing.payments p on p.order_id = o.id
    where NO_OUTBOX
), erased_by_orders (before) as (
    -- A variant that deletes events once they are published may have erased all of them.
    select case when DELETES_EVENTS then 'infinity' else max(erased_before) end from orders.outbox_retention
), confirmed as (
    select event_id, aggregate_id as order_id from events where event_type = 'OrderConfirmed'
), cancelled as (
    select event_id, aggregate_id as order_id, published_at from events where event_type = 'OrderCancelled'
), answer_events as (
    -- The events of inventory and billing, with the order that they are about.
    select e.place, e.event_id, r.order_id, e.published_at, e.parked_at, e.discarded
    from events e join inventory.reservations r on r.id = e.aggregate_id where e.place = 'inventory'
    union all
    select e.place, e.event_id, p.order_id, e.published_at, e.parked_at, e.discarded
    from events e join billing.payments p on p.id = e.aggregate_id where e.place = 'billing'
), creation_erased as (
    -- Retention erases published events, and records up to which time of publishing. An event is published after its
    -- order was placed, so the event of an order that was placed after that time has to exist. For an earlier order the
    -- effects are checked instead: only published events are erased, and every published event has to be applied.
    select o.id as order_id
    from orders.orders o
    where o.placed_at < (select before from erased_by_orders)
      and not exists (select from created c where c.order_id = o.id)
), cancellation_erased as (
    select o.id as order_id
    from orders.orders o
    where o.cancelled_at < (select before from erased_by_orders)
      and not exists (select from cancelled c where c.order_id = o.id)
), creation_published as (
    select order_id, event_id from created where published_at is not null
    union all select order_id, null from creation_erased
), cancellation_published as (
    select order_id, event_id from cancelled where published_at is not null
    union all select order_id, null from cancellation_erased
), records_erased as (
    -- The same for the consumers' records of processed events. A record is written before its effect, in one
    -- transaction, so the effect is a few milliseconds younger. A minute covers that, and also the clock of another
    -- machine.
    select (select max(erased_before) + interval '1 minute' from orders.inbox_retention) as orders,
           (select max(erased_before) + interval '1 minute' from inventory.inbox_retention) as inventory,
           (select max(erased_before) + interval '1 minute' from billing.inbox_retention) as billing,
           (select max(erased_before) + interval '1 minute' from inventory.outbox_retention) as stock_answers,
           (select max(erased_before) + interval '1 minute' from billing.outbox_retention) as payment_answers
), dead_letters as (
    -- Messages that wait for an operator, or that an operator has discarded. Their effects are not missing.
    select 'orders' as place, id, event_id, event_type, subject, resolution from orders.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'inventory', id, event_id, event_type, subject, resolution from inventory.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'billing', id, event_id, event_type, subject, resolution from billing.dead_letters
    where resolution is distinct from 'replayed'
), blocked as (
    -- Orders that cannot end by themselves, because one of their events was set aside or discarded.
    select coalesce(c.order_id, d.subject) as order_id
    from dead_letters d left join created c using (event_id) where d.place <> 'orders'
    union
    select a.order_id from dead_letters d join answer_events a using (event_id) where d.place = 'orders'
    union
    select aggregate_id from events where place = 'orders' and (parked_at is not null or discarded)
    union
    select order_id from answer_events where parked_at is not null or discarded
), overtaken as (
    -- Creations that were discarded, or that the broker set aside: their cancellations may be applied first. Those that
    -- their consumer set aside hold them back. Matched by the order too, because the event may have been erased since.
    select 'inventory' as place, coalesce(c.order_id, d.subject) as order_id
    from inventory.dead_letters d left join created c using (event_id)
    where (d.event_type = 'OrderCreated' or c.order_id is not null)
      and (d.arrival is not null or d.resolution = 'discarded')
    union all
    select 'billing', coalesce(c.order_id, d.subject)
    from billing.dead_letters d left join created c using (event_id)
    where (d.event_type = 'OrderCreated' or c.order_id is not null)
      and (d.arrival is not null or d.resolution = 'discarded')
    union all
    select place, order_id from created, unnest(array['inventory', 'billing']) as place where discarded
), answers_applied as (
    select order_id,
           count(*) filter (where event_type = 'StockReserved') as reserved,
           count(*) filter (where event_type = 'PaymentCaptured') as captured,
           count(*) filter (where event_type in ('StockRejected', 'PaymentDeclined')) as refusals
    from orders.answers group by order_id
), open_order as (
    select id from orders.orders where status in ('pending', 'reserved', 'paid')
), charge as (
    select reference as order_id, count(*) as times, sum(amount) as amount, sum(refunded) as refunded
    from provider.charges where status = 'captured' group by reference
), in_progress as (
    select (select count(*) from events where published_at is null and parked_at is null and not discarded) as pending,
           (select count(*) from billing.payments where state in ('asked', 'refunding')) as payments_pending,
           (select count(*) from open_order where id not in (select order_id from blocked where order_id is not null))
               as open_orders
), unblocked as (
    -- All other orders: the sums are those of these.
    select id, status, total_amount from orders.orders
    where id not in (select order_id from blocked where order_id is not null)
), sums as (
    select (select coalesce(sum(c.amount - c.refunded), 0)
            from charge c join unblocked on unblocked.id = c.order_id) as paid,
           (select coalesce(sum(total_amount), 0) from unblocked where status = 'confirmed') as cost,
           (select coalesce(sum(l.quantity), 0)
            from inventory.reservation_lines l join inventory.reservations r on r.id = l.reservation_id
            join unblocked on unblocked.id = r.order_id
            where r.state = 'held') as held,
           (select coalesce(sum(l.quantity), 0) from orders.order_lines l join unblocked on unblocked.id = l.order_id
            where unblocked.status = 'confirmed') as ordered
), totals as (
    select (select coalesce(sum(amount), 0) from charge)::bigint as charged,
           (select coalesce(sum(amount), 0) from provider.refunds)::bigint as refunded,
           (select coalesce(sum(total_amount), 0) from orders.orders where status = 'confirmed')::bigint
               as confirmed_total,
           (select coalesce(sum(reserved), 0) from inventory.stock)::bigint as reserved,
           (select coalesce(sum(l.quantity), 0)
            from orders.order_lines l join orders.orders o on o.id = l.order_id
            where o.status = 'confirmed')::bigint as confirmed_pieces
), missing (kind, place, what, id) as (
    select 'missing', 'orders', 'acknowledged order does not exist', a.id::text
    from acknowledged a where not exists (select from orders.orders o where o.id = a.id)
    union all
    select 'missing', 'orders', 'order without its OrderCreated event', o.id::text
    from orders.orders o
    where not exists (select from created c where c.order_id = o.id)
      and not exists (select from creation_erased e where e.order_id = o.id)
    union all
    select 'missing', 'orders', 'confirmed order without its OrderConfirmed event', o.id::text
    from orders.orders o
    where o.confirmed_at is not null
      and not exists (select from confirmed c where c.order_id = o.id)
      and o.confirmed_at >= (select before from erased_by_orders)
    union all
    select 'missing', 'orders', 'cancelled order without its OrderCancelled event', o.id::text
    from orders.orders o
    where o.status = 'cancelled'
      and not exists (select from cancelled c where c.order_id = o.id)
      and not exists (select from cancellation_erased e where e.order_id = o.id)
    union all
    select 'missing', 'inventory', 'inventory never applied the order: no reservation exists', p.order_id::text
    from creation_published p
    where not exists (select from inventory.reservations r where r.order_id = p.order_id)
      and not exists (select from dead_letters d where d.place = 'inventory' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      -- A creation that is applied after its cancellation has no effect. Whether that order was allowed is checked
      -- below.
      and not exists (select from inventory.cancelled_orders c where c.order_id = p.order_id and c.came_first)
    union all
    select 'missing', 'billing', 'billing never applied the order: no payment exists', p.order_id::text
    from creation_published p
    where not exists (select from billing.payments i where i.order_id = p.order_id)
      and not exists (select from dead_letters d where d.place = 'billing' and (d.event_id = p.event_id
              or p.event_id is null and d.event_type = 'OrderCreated' and d.subject = p.order_id))
      and not exists (select from billing.cancelled_orders c where c.order_id = p.order_id and c.came_first)
    union all
    select 'missing', 'inventory', 'OrderCancelled published, but the stock is not released', c.order_id::text
    from cancellation_published c join inventory.reservations r using (order_id)
    where r.state = 'held'
      and not exists (select from dead_letters d where d.place = 'inventory' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'missing', 'billing', 'OrderCancelled published, but the payment is not cancelled', c.order_id::text
    from cancellation_published c join billing.payments p using (order_id)
    where p.cancelled_by is null
      and not exists (select from dead_letters d where d.place = 'billing' and (d.event_id = c.event_id
              or c.event_id is null and d.event_type = 'OrderCancelled' and d.subject = c.order_id))
    union all
    select 'missing', 'billing', 'payment cancelled, but the charge is not refunded', p.order_id::text
    from billing.payments p where p.cancelled_by is not null and p.state = 'captured'
    union all
    -- A service writes the event of an effect in the transaction of that effect.
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
    select 'missing', a.place, 'answer published, but the order service has not applied it', a.order_id::text
    from answer_events a
    where a.published_at is not null
      and not exists (select from orders.answers h where h.event_id = a.event_id)
      and not exists (select from dead_letters d where d.place = 'orders' and d.event_id = a.event_id)
), processed as (
    -- Without what ever was a dead letter: an operator applies it when he wants. A copy that comes more than an hour later
    -- sets the time of its record again.
    select p.place, e.aggregate_id, e.aggregate_version, p.event_id, p.processed_at, p.wrote
    from (
        select 'orders' as place, event_id, processed_at, xmin::text as wrote from orders.processed_events
        where not exists (select from orders.dead_letters d where d.event_id = processed_events.event_id)
        union all
        select 'inventory', event_id, processed_at, xmin::text from inventory.processed_events
        where not exists (select from inventory.dead_letters d where d.event_id = processed_events.event_id)
        union all
        select 'billing', event_id, processed_at, xmin::text from billing.processed_events
        where not exists (select from billing.dead_letters d where d.event_id = processed_events.event_id)
    ) as p join events e using (event_id)
    where p.processed_at < e.created_at + interval '1 hour'
), next_processed as (
    -- Of events that one transaction has applied, the times say nothing about their order.
    select place, aggregate_id, event_id,
           lag(processed_at) over versions > processed_at and lag(wrote) over versions <> wrote as overtook
    from processed
    window versions as (partition by place, aggregate_id order by aggregate_version)
), findings as (
    select * from missing
    union all
    select 'out-of-order', n.place, 'an event applied before an older one of its aggregate',
           coalesce(a.order_id, n.aggregate_id)::text
    from next_processed n left join answer_events a using (event_id)
    where n.overtook
    union all
    select 'out-of-order', 'inventory', 'OrderCancelled applied before OrderCreated', c.order_id::text
    from inventory.cancelled_orders c
    where c.came_first
      and not exists (select from overtaken o where o.place = 'inventory' and o.order_id = c.order_id)
    union all
    select 'out-of-order', 'billing', 'OrderCancelled applied before OrderCreated', c.order_id::text
    from billing.cancelled_orders c
    where c.came_first
      and not exists (select from overtaken o where o.place = 'billing' and o.order_id = c.order_id)
    union all
    select 'doubled', 'orders', 'order with more than one OrderCreated event', order_id::text
    from created group by order_id having count(*) > 1
    union all
    select 'doubled', 'orders', 'order confirmed more than once', order_id::text
    from confirmed group by order_id having count(*) > 1
    union all
    select 'doubled', 'orders', 'answer applied more than once', order_id::text
    from orders.answers group by order_id, event_type having count(*) > 1
    union all
    select 'doubled', 'inventory', 'order with more than one reservation', order_id::text
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
    select 'phantom', 'orders', 'OrderCreated event without its order', c.order_id::text
    from created c where not exists (select from orders.orders o where o.id = c.order_id)
    union all
    select 'phantom', 'orders', 'OrderConfirmed event of an order that is not confirmed', c.order_id::text
    from confirmed c
    where not exists (select from orders.orders o where o.id = c.order_id and o.confirmed_at is not null)
    union all
    select 'phantom', 'orders', 'OrderCancelled event of an order that is not cancelled', c.order_id::text
    from cancelled c
    where not exists (select from orders.orders o where o.id = c.order_id and o.status = 'cancelled')
    union all
    select 'phantom', 'orders', 'confirmed order without both answers', o.id::text
    from orders.orders o left join answers_applied a on a.order_id = o.id
    where o.confirmed_at is not null and (coalesce(a.reserved, 0) = 0 or coalesce(a.captured, 0) = 0)
    union all
    select 'phantom', 'orders', 'answer whose event was never written', a.order_id::text
    from orders.answers a, records_erased
    where not exists (select from events e where e.event_id = a.event_id)
      and a.occurred_at >= case a.source when '/inventory' then stock_answers else payment_answers end
    union all
    select 'phantom', 'orders', 'answer whose event is not recorded as processed', a.order_id::text
    from orders.answers a
    where not exists (select from orders.processed_events p where p.event_id = a.event_id)
      and a.applied_at >= coalesce((select orders from records_erased), '-infinity')
    union all
    select 'phantom', 'inventory', 'stock released without an OrderCancelled event', r.order_id::text
    from inventory.reservations r
    where r.released_by is not null
      and not exists (select from cancelled c where c.event_id = r.released_by)
      and not exists (select from cancellation_erased e where e.order_id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation without its order', r.order_id::text
    from inventory.reservations r where not exists (select from orders.orders o where o.id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation whose event was never written', r.order_id::text
    from inventory.reservations r
    where not exists (select from created c where c.event_id = r.event_id)
      and not exists (select from creation_erased e where e.order_id = r.order_id)
    union all
    select 'phantom', 'inventory', 'reservation whose event is not recorded as processed', r.order_id::text
    from inventory.reservations r
    where not exists (select from inventory.processed_events p where p.event_id = r.event_id)
      and r.decided_at >= coalesce((select inventory from records_erased), '-infinity')
    union all
    select 'phantom', 'billing', 'payment cancelled without an OrderCancelled event', p.order_id::text
    from billing.payments p
    where p.cancelled_by is not null
      and not exists (select from cancelled c where c.event_id = p.cancelled_by)
      and not exists (select from cancellation_erased e where e.order_id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment without its order', p.order_id::text
    from billing.payments p where not exists (select from orders.orders o where o.id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment whose event was never written', p.order_id::text
    from billing.payments p
    where not exists (select from created c where c.event_id = p.event_id)
      and not exists (select from creation_erased e where e.order_id = p.order_id)
    union all
    select 'phantom', 'billing', 'payment whose event is not recorded as processed', p.order_id::text
    from billing.payments p
    where not exists (select from billing.processed_events e where e.event_id = p.event_id)
      and p.asked_at >= coalesce((select billing from records_erased), '-infinity')
    union all
    -- One that was refunded has no effect: after a restore an operator refunds the charges of forgotten orders.
    select 'phantom', 'provider', 'charge without a payment', c.order_id::text
    from charge c
    where c.refunded < c.amount and not exists (select from billing.payments p where p.order_id = c.order_id)
    union all
    select 'phantom', 'provider', 'refund that billing did not request', c.order_id::text
    from charge c join billing.payments p using (order_id)
    where c.refunded > 0 and p.state not in ('refunding', 'refunded')
    union all
    select 'wrong-sum', 'orders', 'order total differs from the sum of its lines', o.id::text
    from orders.orders o
    where o.total_amount is distinct from (
        select sum(l.quantity * l.unit_price) from orders.order_lines l where l.order_id = o.id)
    union all
    select 'wrong-sum', 'orders', 'order still open after its answers decided it', o.id::text
    from open_order o join answers_applied a on a.order_id = o.id
    where a.refusals > 0 or (a.reserved > 0 and a.captured > 0)
    union all
    select 'wrong-sum', 'inventory', 'reserved line differs from the ordered line', r.order_id::text
    from inventory.reservations r
    join orders.order_lines l on l.order_id = r.order_id
    left join inventory.reservation_lines h on (h.reservation_id, h.line_number) = (r.id, l.line_number)
    where r.state <> 'rejected' and (l.sku, l.quantity) is distinct from (h.sku, h.quantity)
    union all
    select 'wrong-sum', 'inventory', 'reserved line that was not ordered', r.order_id::text
    from inventory.reservations r
    join inventory.reservation_lines h on h.reservation_id = r.id
    left join orders.order_lines l on (l.order_id, l.line_number) = (r.order_id, h.line_number)
    where l.order_id is null or r.state = 'rejected'
    union all
    select 'wrong-sum', 'inventory', 'reserved stock differs from the sum of its reservations', s.sku
    from inventory.stock s
    where s.reserved <> (
        select coalesce(sum(l.quantity), 0)
        from inventory.reservation_lines l join inventory.reservations r on r.id = l.reservation_id
        where l.sku = s.sku and r.state = 'held')
    union all
    select 'wrong-sum', 'inventory', 'confirmed order without reserved stock', o.id::text
    from orders.orders o
    where o.status = 'confirmed'
      and not exists (select from inventory.reservations r where r.order_id = o.id and r.state = 'held')
    union all
    select 'wrong-sum', 'billing', 'payment differs from the order total', o.id::text
    from orders.orders o join billing.payments p on p.order_id = o.id
    where p.amount <> o.total_amount
    union all
    select 'wrong-sum', 'billing', 'confirmed order without a captured payment', o.id::text
    from orders.orders o
    where o.status = 'confirmed'
      and not exists (select from billing.payments p where p.order_id = o.id and p.state = 'captured')
    union all
    select 'wrong-sum', 'provider', 'charge that billing has recorded as declined or void', c.order_id::text
    from charge c join billing.payments p using (order_id) where p.state in ('declined', 'void')
    union all
    select 'wrong-sum', 'provider', 'charge in billing without its match at the provider', p.order_id::text
    from billing.payments p
    where p.charge_id is not null
      and not exists (
          select from provider.charges c
          where (c.id, c.reference, c.amount, c.status) = (p.charge_id, p.order_id, p.amount, 'captured'))
    union all
    select 'wrong-sum', 'provider', 'refund in billing without its match at the provider', p.order_id::text
    from billing.payments p
    where p.refund_id is not null
      and not exists (
          select from provider.refunds r
          where (r.id, r.charge_id, r.amount) = (p.refund_id, p.charge_id, p.amount))
    union all
    -- The sums over all orders. They follow from the checks above if these are complete. They are compared only when
    -- nothing is in progress: until then money and stock are ahead of their orders, or behind them.
    select 'wrong-sum', 'provider', 'charged minus refunded differs from the total of confirmed orders', 'all orders'
    from sums, in_progress
    where (pending, payments_pending, open_orders) = (0, 0, 0) and not exists (select from missing) and paid <> cost
    union all
    select 'wrong-sum', 'inventory', 'reserved pieces differ from those of confirmed orders', 'all orders'
    from sums, in_progress
    where (pending, payments_pending, open_orders) = (0, 0, 0) and not exists (select from missing) and held <> ordered
)
select json_build_object(
    'acknowledged', (select count(*) from acknowledged),
    'orders', (select count(*) from orders.orders),
    'confirmed', (select count(*) from orders.orders where status = 'confirmed'),
    'cancelled', (select count(*) from orders.orders where status = 'cancelled'),
    'open', in_progress.open_orders,
    'events', (select count(*) from events),
    'pending', in_progress.pending,
    'paymentsPending', in_progress.payments_pending,
    'parked', (select count(*) from events where parked_at is not null and not discarded),
    'setAside', coalesce((
        select json_agg(json_build_object('place', place, 'discarded', discarded, 'count', n, 'first', ids))
        from (
            select place, discarded, count(*) as n,
                   (array_agg(place || '/' || name order by name))[1:5] as ids
            from (
                select place, resolution is not null as discarded, id::text as name from dead_letters
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
    'reserved', reserved, 'confirmedPieces', confirmed_pieces,
    -- Distinct orders: one that inventory and billing both lack is one lost order.
    'affected', coalesce((
        select json_object_agg(kind, n) from (select kind, count(distinct id) as n from findings group by kind) as each
    ), '{}'),
    'findings', coalesce((
        select json_agg(json_build_object('kind', kind, 'place', place, 'what', what, 'count', n, 'first', ids))
        from (
            select kind, place, what, count(distinct id) as n, (array_agg(distinct id))[1:10000] as ids
            from findings group by kind, place, what order by kind, place, what
        ) as grouped
    ), '[]')
)::text
from in_progress, totals
