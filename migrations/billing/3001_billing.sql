-- What the billing service owns.

-- One row per order: the effect of `OrderCreated` here, what is still to be asked of the payment provider, and the
-- aggregate of the events that this service publishes (its id is their `subject`). Amounts are integers in minor units.
create table payments (
    id uuid primary key,
    -- There is deliberately no unique key on order_id. The inbox alone has to keep the effect from happening twice; a
    -- second net here would hide the day on which the first one tears.
    order_id uuid not null,
    customer_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    -- The event that caused it, and the idempotency key of the charge: however often the provider is asked, and by
    -- whomever, it charges once for this key.
    event_id uuid not null,
    -- W3C trace context of that event: the answer is written later, by somebody who has not seen it.
    traceparent text not null,
    -- asked → captured → refunding → refunded; or asked → declined; or asked → void, when the order was off before the
    -- provider had been asked. What is `asked` or `refunding` is owed a call, as an outbox row is owed a publish.
    state text not null
        check (state in ('asked', 'captured', 'declined', 'void', 'refunding', 'refunded')),
    asked_at timestamptz not null default clock_timestamp(),
    -- The event that took the order back, and the idempotency key of the refund.
    cancelled_by uuid,
    -- Calls that were begun. Written before the call: zero means that the provider knows nothing of it.
    attempts integer not null default 0 check (attempts >= 0),
    -- When the next call may be made. Whoever takes one in hand moves this ahead, so that others leave it alone
    -- meanwhile. That is thrift and no lock: should two call at once, the key makes it one charge.
    due_at timestamptz not null default clock_timestamp(),
    last_error text,
    -- What the provider calls them.
    charge_id uuid,
    refund_id uuid,
    -- When its answer was written down here, with the event that tells of it.
    answered_at timestamptz,
    refunded_at timestamptz,
    check ((charge_id is not null) = (state in ('captured', 'refunding', 'refunded'))),
    check ((refund_id is not null) = (state = 'refunded')),
    check (state not in ('refunding', 'refunded', 'void') or cancelled_by is not null)
);
create index payments_by_order on payments (order_id);

-- What is owed a call, in order. Everything else leaves it, so it stays as small as the backlog.
create index payments_owed on payments (due_at) where state in ('asked', 'refunding');

-- The orders that are off. A creation that comes after its cancellation finds the note here and charges nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when there was no payment yet: the two events were applied in the wrong order. The outcome is right all the
    -- same, but the order of one order's events is a promise of its own, and this is how its breach is seen.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
