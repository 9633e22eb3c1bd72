-- The board's own count: groups the rows of all services and of the payment provider by order. The board runs it beside
-- the load again and again, so it scans each table once and compares no events: `demo verify` does that.
with acknowledged as (
    -- Acknowledged orders that the board has not seen yet. One that was seen, and is gone, leaves records without an
    -- order: a finding below.
    select distinct id from unnest(ACKNOWLEDGED) as ids (id)
), unpublished as (
    select aggregate_id as order_id from orders.outbox
    where published_at is null and parked_at is null and event_type = 'OrderCreated'
), set_aside (place, subject, event_id, waits) as (
    -- Parked events and dead letters, and those that an operator has discarded. An index finds the parked events.
    select 'orders', aggregate_id, event_id, true from orders.outbox
    where published_at is null and attempts > 0 and parked_at is not null
    union all select 'orders', aggregate_id, event_id, false from orders.outbox_discarded
    union all
    select 'inventory', aggregate_id, event_id, true from inventory.outbox
    where published_at is null and attempts > 0 and parked_at is not null
    union all select 'inventory', aggregate_id, event_id, false from inventory.outbox_discarded
    union all
    select 'billing', aggregate_id, event_id, true from billing.outbox
    where published_at is null and attempts > 0 and parked_at is not null
    union all select 'billing', aggregate_id, event_id, false from billing.outbox_discarded
    union all
    select 'letter', subject, event_id, resolution is null from inventory.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'letter', subject, event_id, resolution is null from billing.dead_letters
    where resolution is distinct from 'replayed'
    union all
    select 'letter', subject, event_id, resolution is null from orders.dead_letters
    where resolution is distinct from 'replayed'
), blocked (order_id) as (
    -- Orders that do not go on by themselves. A subject is an order, a reservation or a payment.
    select subject from set_aside where subject is not null
    union select aggregate_id from orders.outbox join set_aside using (event_id) where subject is null
    union select r.order_id from set_aside join inventory.reservations r on r.id = subject
    union select p.order_id from set_aside join billing.payments p on p.id = subject
), record as (
    -- Every row about an order, of whichever service.
    select id, status, total_amount as total, null::uuid as reservation, null::text as stock, null::uuid as payment,
           null::text as asked, null::uuid as charge, null::bigint as charged, null::bigint as refunded
    from orders.orders
    union all
    select order_id, null, null, id, state, null, null, null, null, null from inventory.reservations
    union all
    select order_id, null, null, null, null, id, state, null, null, null from billing.payments
    union all
    select reference, null, null, null, null, null, null, id, amount, refunded
    from provider.charges where status = 'captured'
), life as (
    select id, max(status) as status, max(total) as total,
           count(reservation) as reservations, max(stock) = 'held' as held,
           count(payment) as payments, max(asked) in ('asked', 'refunding') as owed,
           count(charge) as charges, sum(charged) as charged, sum(refunded) as refunded
    from record group by id
), suspect as (
    -- Every order but those with one record of each kind: the questions below are asked of few.
    select * from life
    where not coalesce(status = 'confirmed' and reservations = 1 and payments = 1 and charges = 1
                       and charged - refunded = total, false)
), finding (kind, place, what, may_arrive, id) as (
    select 'missing', 'orders', 'acknowledged order does not exist', false, a.id::text
    from acknowledged a where not exists (select from orders.orders o where o.id = a.id)
    union all
    select f.kind, f.place, f.what, f.may_arrive, id::text
    from (select *, status is not null as placed, exists (select from blocked where order_id = suspect.id) as blocked,
                 exists (select from unpublished where order_id = suspect.id) as unpublished,
                 exists (select from orders.outbox e where e.aggregate_id = suspect.id and e.event_type = 'OrderCreated')
                     as created,
                 -- Published events of older orders may be erased.
                 exists (select from orders.orders o where o.id = suspect.id and o.placed_at > now() - interval '1 day')
                     as young
          from suspect) as suspect
    cross join lateral (values
        ('missing', 'orders', 'order without its OrderCreated', false, placed and not created and young),
        ('missing', 'inventory', 'the cancellation came, and OrderCreated did not come before it', false, not blocked
            and exists (select from inventory.cancelled_orders x where x.order_id = suspect.id and x.came_first)),
        ('missing', 'billing', 'the cancellation came, and OrderCreated did not come before it', false, not blocked
            and exists (select from billing.cancelled_orders x where x.order_id = suspect.id and x.came_first)),
        ('missing', 'inventory', 'order without a reservation', true, placed and reservations = 0 and not blocked
            and not unpublished
            and not exists (select from inventory.cancelled_orders x where x.order_id = suspect.id and x.came_first)),
        ('missing', 'billing', 'order without a payment', true, placed and payments = 0 and not blocked
            and not unpublished
            and not exists (select from billing.cancelled_orders x where x.order_id = suspect.id and x.came_first)),
        ('missing', 'provider', 'confirmed order without a charge', false, status = 'confirmed' and charges = 0),
        ('missing', 'billing', 'cancelled order, and the charge is not refunded', true,
            status = 'cancelled' and charged > refunded and not blocked),
        ('missing', 'inventory', 'cancelled order, and the stock is not released', true,
            status = 'cancelled' and held and not blocked),
        ('doubled', 'inventory', 'order with two reservations', false, reservations > 1),
        ('doubled', 'billing', 'order with two payments', false, payments > 1),
        ('doubled', 'provider', 'order that was charged twice', false, charges > 1),
        ('phantom', 'orders', 'records of an order that does not exist', false, not placed),
        ('wrong-sum', 'provider', 'confirmed order that cost something else', false,
            status = 'confirmed' and charges = 1 and charged - refunded <> total)
    ) as f (kind, place, what, may_arrive, found)
    where f.found
), outbox (pending) as (
    select (select count(*) from orders.outbox where published_at is null and parked_at is null)
         + (select count(*) from inventory.outbox where published_at is null and parked_at is null)
         + (select count(*) from billing.outbox where published_at is null and parked_at is null)
)
select json_build_object(
    'unseen', (select coalesce(json_agg(a.id), '[]') from acknowledged a
               where not exists (select from orders.orders o where o.id = a.id)),
    'orders', count(status),
    'confirmed', count(*) filter (where status = 'confirmed'),
    'cancelled', count(*) filter (where status = 'cancelled'),
    'open', count(*) filter (where status not in ('confirmed', 'cancelled')),
    'inProgress', (select pending from outbox) + count(*) filter (where owed) + count(*) filter (
        where status not in ('confirmed', 'cancelled')
          and id not in (select order_id from blocked where order_id is not null)),
    'setAside', (select count(*) from set_aside where waits),
    'charged', coalesce(sum(charged), 0), 'refunded', coalesce(sum(refunded), 0),
    'confirmedTotal', coalesce(sum(total) filter (where status = 'confirmed'), 0),
    'reserved', (select coalesce(sum(reserved), 0) from inventory.stock),
    'confirmedPieces', (select coalesce(sum(l.quantity), 0)
                        from orders.order_lines l join orders.orders o on o.id = l.order_id where o.status = 'confirmed'),
    'findings', (
        select coalesce(json_agg(json_build_object('kind', kind, 'place', place, 'what', what, 'mayArrive', may_arrive,
                                                   'count', n, 'first', first)), '[]')
        from (select kind, place, what, may_arrive, count(*) as n, min(id) as first
              from finding group by kind, place, what, may_arrive) as grouped)
)::text
from life
