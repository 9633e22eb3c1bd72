-- What has happened in the last seconds, and what waits: each event that was written, published or applied, from its
-- row. It costs the same whatever the tables hold: it reads the newest rows of each outbox, and the pending ones. With
-- more than a hundred new events a second `moves` is null, and the page shows a flow.
with newest (place, event_id, event_type, created_at, published_at) as (
    (select 'orders', event_id, event_type, created_at, published_at from orders.outbox
     order by seq desc limit 120)
    union all
    (select 'inventory', event_id, event_type, created_at, published_at from inventory.outbox
     order by seq desc limit 60)
    union all
    (select 'billing', event_id, event_type, created_at, published_at from billing.outbox
     order by seq desc limit 60)
), move (hop, event_type, event_id, at) as (
    select 'written ' || place, event_type, event_id, created_at from newest
    union all
    select 'published ' || place, event_type, event_id, published_at from newest
    union all
    select 'applied inventory', n.event_type, event_id, processed_at
    from newest n join inventory.processed_events using (event_id) where place = 'orders' and consumer = 'inventory'
    union all
    select 'applied billing', n.event_type, event_id, processed_at
    from newest n join billing.processed_events using (event_id) where place = 'orders' and consumer = 'billing'
    union all
    select 'applied orders', n.event_type, event_id, processed_at
    from newest n join orders.processed_events using (event_id) where place <> 'orders' and consumer = 'orders'
), pending (place, lane, events) as (
    select 'orders', lane, count(*) from orders.outbox
    where published_at is null and parked_at is null group by lane
    union all
    select 'inventory', lane, count(*) from inventory.outbox
    where published_at is null and parked_at is null group by lane
    union all
    select 'billing', lane, count(*) from billing.outbox
    where published_at is null and parked_at is null group by lane
), open (id) as (
    select id from orders.orders where status in ('pending', 'reserved', 'paid')
), waiting (place, events) as (
    -- Published and not applied, as the records of the open orders say: also while the broker or a consumer is down.
    select 'inventory', (select count(*) from open
                         where not exists (select from inventory.reservations r where r.order_id = open.id))
    union all
    select 'billing', (select count(*) from open
                       where not exists (select from billing.payments p where p.order_id = open.id))
    union all
    select 'orders', (select count(*) from open join inventory.reservations r on r.order_id = open.id)
                   + (select count(*) from open join billing.payments p on p.order_id = open.id
                      where p.answered_at is not null)
                   - (select count(*) from open join orders.answers a on a.order_id = open.id)
), unpublished (place, events) as (
    select unnest(array['inventory', 'billing']), count(*) from orders.outbox
    where published_at is null and parked_at is null and event_type = 'OrderCreated'
    union all
    select 'orders', coalesce(sum(events), 0) from pending where place <> 'orders'
)
select json_build_object(
    'waiting', (select json_object_agg(place, greatest(0, waiting.events - unpublished.events))
                from waiting join unpublished using (place)),
    'moves', case when (
        select count(*) from newest where created_at > clock_timestamp() - interval '1 second') <= 100
    then (
        select coalesce(json_agg(json_build_array(hop, event_type, right(event_id::text, 8),
                                                  round(extract(epoch from clock_timestamp() - at) * 1000))), '[]')
        from move where at > clock_timestamp() - interval '2 seconds') end,
    'pending', (
        select json_object_agg(place, counts)
        from (select place, json_agg(coalesce(events, 0) order by lane) as counts
              from unnest(array['orders', 'inventory', 'billing']) as place
              cross join generate_series(0, 15) as lane left join pending using (place, lane)
              group by place) as lanes)
)::text
