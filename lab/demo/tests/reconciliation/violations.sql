-- Every finding of the reconciliation, planted once: above the statements that plant it stand its kind, its place and its
-- words. `records.rs` replaces the words in capitals.

-- missing at orders: cancelled order without its OrderCancelled event
COMPENSATED
delete from orders.outbox where event_id = CANCELLATION;

-- missing at orders: confirmed order without its OrderConfirmed event
delete from orders.outbox where event_id = CONFIRMATION;

-- missing at inventory: OrderCancelled published, but the stock is not released
COMPENSATED
update inventory.reservations set state = 'held', released_by = null, released_at = null where order_id = ORDER;

-- missing at billing: OrderCancelled published, but the payment is not cancelled
COMPENSATED
update billing.payments set state = 'captured', cancelled_by = null, refund_id = null where order_id = ORDER;

-- missing at inventory: inventory never applied the order: no reservation exists
delete from inventory.reservation_lines where reservation_id = RESERVATION;
delete from inventory.reservations where id = RESERVATION;

-- missing at billing: billing never applied the order: no payment exists
delete from billing.payments where order_id = ORDER;

-- missing at inventory: answer published, but the order service has not applied it
delete from orders.answers where event_id = STOCK_EVENT;

-- missing at billing: answer published, but the order service has not applied it
delete from orders.answers where event_id = PAYMENT_EVENT;

-- missing at orders: acknowledged order does not exist
delete from orders.answers where order_id = ORDER;
delete from orders.outbox where aggregate_id = ORDER;
delete from orders.order_lines where order_id = ORDER;
delete from orders.orders where id = ORDER;

-- missing at orders: order without its OrderCreated event
delete from orders.outbox where event_id = CREATED;

-- out-of-order at inventory: OrderCancelled applied before OrderCreated
COMPENSATED
update inventory.cancelled_orders set came_first = true where order_id = ORDER;

-- out-of-order at billing: OrderCancelled applied before OrderCreated
COMPENSATED
update billing.cancelled_orders set came_first = true where order_id = ORDER;

-- out-of-order at billing: an event applied before an older one of its aggregate
COMPENSATED
insert into billing.processed_events (consumer, event_id, event_type, processed_at)
    values ('billing', CANCELLATION, 'OrderCancelled', clock_timestamp() - interval '10 minutes');

-- out-of-order at orders: an event applied before an older one of its aggregate
COMPENSATED
update orders.processed_events set processed_at = clock_timestamp() - interval '10 minutes' where event_id = RELEASE_EVENT;

-- doubled at orders: order with more than one OrderCreated event
insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, payload, lane)
    values (gen_random_uuid(), 'order', ORDER, 9, 'OrderCreated', 1, '{}', 0);

-- doubled at orders: order confirmed more than once
insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, payload, lane)
    values (gen_random_uuid(), 'order', ORDER, 9, 'OrderConfirmed', 1, '{}', 0);

-- doubled at orders: answer applied more than once
insert into orders.answers (order_id, event_id, event_type, source, occurred_at)
    select order_id, event_id, event_type, source, occurred_at from orders.answers where event_id = STOCK_EVENT;

-- doubled at inventory: order with more than one reservation
insert into inventory.reservations (id, order_id, event_id, state)
    values (gen_random_uuid(), ORDER, CREATED, 'rejected');

-- doubled at billing: order with more than one payment
insert into billing.payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state)
    values (gen_random_uuid(), ORDER, ORDER, 2700, 'EUR', CREATED, '', 'declined');

-- doubled at provider: customer charged more than once
insert into provider.charges (id, reference, customer_id, amount, currency, status)
    values (gen_random_uuid(), ORDER, ORDER, 2700, 'EUR', 'captured');

-- doubled at provider: charge refunded more than once
COMPENSATED
insert into provider.refunds (id, charge_id, amount) values (gen_random_uuid(), CHARGE, 2700);

-- phantom at orders: OrderCreated event without its order
delete from orders.answers where order_id = ORDER;
delete from orders.order_lines where order_id = ORDER;
delete from orders.orders where id = ORDER;

-- phantom at inventory: reservation without its order
delete from orders.answers where order_id = ORDER;
delete from orders.order_lines where order_id = ORDER;
delete from orders.orders where id = ORDER;

-- phantom at billing: payment without its order
delete from orders.answers where order_id = ORDER;
delete from orders.order_lines where order_id = ORDER;
delete from orders.orders where id = ORDER;

-- phantom at orders: OrderConfirmed event of an order that is not confirmed
update orders.orders set status = 'paid', confirmed_at = null where id = ORDER;

-- phantom at orders: OrderCancelled event of an order that is not cancelled
COMPENSATED
update orders.orders set status = 'confirmed', cancelled_at = null, cancelled_for = null where id = ORDER;

-- phantom at orders: confirmed order without both answers
delete from orders.answers where event_id = PAYMENT_EVENT;

-- phantom at orders: answer whose event was never written
delete from inventory.outbox where event_id = STOCK_EVENT;

-- phantom at orders: answer whose event is not recorded as processed
delete from orders.processed_events where event_id = STOCK_EVENT;

-- phantom at inventory: stock released without an OrderCancelled event
update inventory.reservations set state = 'released', released_by = ORDER, released_at = now() where order_id = ORDER;

-- phantom at inventory: reservation whose event was never written
update inventory.reservations set event_id = gen_random_uuid() where order_id = ORDER;

-- phantom at inventory: reservation whose event is not recorded as processed
delete from inventory.processed_events where event_id = CREATED;

-- phantom at billing: payment cancelled without an OrderCancelled event
update billing.payments set cancelled_by = ORDER where order_id = ORDER;

-- phantom at billing: payment whose event was never written
update billing.payments set event_id = gen_random_uuid() where order_id = ORDER;

-- phantom at billing: payment whose event is not recorded as processed
delete from billing.processed_events where event_id = CREATED;

-- phantom at provider: charge without a payment
delete from billing.payments where order_id = ORDER;

-- phantom at provider: refund that billing did not request
update provider.charges set refunded = 1 where id = CHARGE;

-- wrong-sum at orders: order total differs from the sum of its lines
update orders.orders set total_amount = 2701 where id = ORDER;

-- wrong-sum at orders: order still open after its answers decided it
update orders.orders set status = 'reserved', confirmed_at = null where id = ORDER;

-- wrong-sum at inventory: reserved line differs from the ordered line
update inventory.reservation_lines set quantity = 3 where reservation_id = RESERVATION and line_number = 1;

-- wrong-sum at inventory: reserved line differs from the ordered line
update inventory.reservation_lines set sku = 'TEA-002' where reservation_id = RESERVATION and line_number = 1;

-- wrong-sum at inventory: reserved line differs from the ordered line
delete from inventory.reservation_lines where reservation_id = RESERVATION and line_number = 2;

-- wrong-sum at inventory: reserved line that was not ordered
delete from orders.order_lines where order_id = ORDER and line_number = 2;

-- wrong-sum at inventory: reserved stock differs from the sum of its reservations
update inventory.stock set reserved = reserved - 1 where sku = 'MUG-001';

-- wrong-sum at inventory: reserved pieces differ from those of confirmed orders
update inventory.reservations set state = 'rejected' where order_id = ORDER;

-- wrong-sum at inventory: confirmed order without reserved stock
update inventory.reservations set state = 'rejected' where order_id = ORDER;

-- wrong-sum at billing: payment differs from the order total
update billing.payments set amount = 1 where order_id = ORDER;

-- wrong-sum at billing: confirmed order without a captured payment
update billing.payments set state = 'declined', charge_id = null where order_id = ORDER;

-- wrong-sum at provider: charge that billing has recorded as declined or void
update billing.payments set state = 'declined', charge_id = null where order_id = ORDER;

-- wrong-sum at provider: charge in billing without its match at the provider
update provider.charges set amount = 1 where id = CHARGE;

-- wrong-sum at provider: charged minus refunded differs from the total of confirmed orders
update provider.charges set amount = 1 where id = CHARGE;

-- wrong-sum at provider: refund in billing without its match at the provider
COMPENSATED
update provider.refunds set amount = 1 where charge_id = CHARGE;

-- missing at billing: payment cancelled, but the charge is not refunded
COMPENSATED
update billing.payments set state = 'captured', refund_id = null where order_id = ORDER;

-- missing at inventory: reservation without its event
delete from inventory.outbox where event_id = STOCK_EVENT;

-- missing at inventory: release without its event
COMPENSATED
delete from inventory.outbox where event_id = RELEASE_EVENT;

-- missing at billing: payment without its event
delete from billing.outbox where event_id = PAYMENT_EVENT;

-- missing at billing: refund without its event
COMPENSATED
delete from billing.outbox where event_id = REFUND_EVENT;
