-- The tables of the billing service.

-- One row per order: the effect of `OrderCreated` in this service, the calls to the payment provider that are
-- pending, and the aggregate of the events that this service publishes (its id is their `subject`). Amounts are
-- integers in minor units.
create table payments (
    id uuid primary key,
    -- Deliberately without a unique key on order_id: the inbox alone has to keep the effect from happening twice, and a
    -- second protection would hide a fault in it.
    order_id uuid not null,
    customer_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    -- The event that caused the payment, and the idempotency key of the charge: however often and from whichever
    -- instance the provider is called, it charges once for this key.
    event_id uuid not null,
    -- W3C trace context of that event: the payment worker, which has not seen the event, writes the answer later.
    traceparent text not null,
    -- asked → captured → refunding → refunded; or asked → declined; or asked → void, when the order was cancelled
    -- before the provider was called. For a payment that is `asked` or `refunding` a call is pending, as for an
    -- outbox row a publish is.
    state text not null
        check (state in ('asked', 'captured', 'declined', 'void', 'refunding', 'refunded')),
    asked_at timestamptz not null default clock_timestamp(),
    -- The event that cancelled the order.
    cancelled_by uuid,
    -- Since when it waits for the refund. Its age is not counted from the charge, which may be months older.
    refund_asked_at timestamptz,
    -- Calls that were begun. Incremented before the call: zero means that the provider was never called.
    attempts integer not null default 0 check (attempts >= 0),
    -- When the next call may be made. The instance that takes a payment moves this ahead, so that other instances
    -- leave the payment alone meanwhile. That saves calls and is not a lock: if two instances call at once, the key
    -- makes it one charge.
    due_at timestamptz not null default clock_timestamp(),
    last_error text,
    -- The provider's ids.
    charge_id uuid,
    refund_id uuid,
    -- When the provider's answer was written here, with the event that reports it.
    answered_at timestamptz,
    refunded_at timestamptz,
    check ((charge_id is not null) = (state in ('captured', 'refunding', 'refunded'))),
    check ((refund_id is not null) = (state = 'refunded')),
    check (state not in ('refunding', 'refunded', 'void') or cancelled_by is not null)
);
create index payments_by_order on payments (order_id);

-- Payments with a pending call, in order. Settled payments leave it, so it stays as small as the backlog. The two
-- times are here so that the metrics are counted without reading the payments.
create index payments_pending on payments (due_at) include (asked_at, refund_asked_at) where state in ('asked', 'refunding');

-- Cancelled orders. A creation that arrives after its cancellation finds the row here and charges nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when there was no payment yet: the two events were applied in the wrong order. The outcome is correct in
    -- spite of it, but the order of one order's events is guaranteed too, and this column shows a violation.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
