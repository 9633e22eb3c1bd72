-- Orders whose stock or payment does not fit, from the tables of the three services: for where the payment provider has no schema.
-- What is in progress is found too: run it twice, a minute apart. What stays is a finding.
select 'confirmed without stock' as finding, id as order_id from orders.orders o where status = 'confirmed'
   and not exists (select from inventory.reservations r where r.order_id = o.id and r.state = 'held')
union all
select 'confirmed without its payment', id from orders.orders o where status = 'confirmed'
   and not exists (select from billing.payments p
                   where (p.order_id, p.state, p.amount) = (o.id, 'captured', o.total_amount))
union all
select 'cancelled, stock held', o.id from orders.orders o join inventory.reservations r on r.order_id = o.id
 where (o.status, r.state) = ('cancelled', 'held')
union all
select 'cancelled, not refunded', o.id from orders.orders o join billing.payments p on p.order_id = o.id
 where (o.status, p.state) = ('cancelled', 'captured')
union all
select 'two reservations', order_id from inventory.reservations group by order_id having count(*) > 1
union all
select 'two payments', order_id from billing.payments group by order_id having count(*) > 1
union all
select 'no such order', order_id
  from (select order_id from inventory.reservations union select order_id from billing.payments) as answered
 where not exists (select from orders.orders o where o.id = answered.order_id);
