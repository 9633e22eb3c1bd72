-- What the billing service owns.

-- One row per order: the effect of `OrderCreated` here. Amounts are integers in minor units (cents).
create table invoices (
    -- There is deliberately no unique key on order_id. The inbox alone has to keep the effect from happening twice; a
    -- second net here would hide the day on which the first one tears.
    id bigint generated always as identity primary key,
    order_id uuid not null,
    customer_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    -- The event that caused it: from any effect one can walk back to its cause.
    event_id uuid not null,
    issued_at timestamptz not null default clock_timestamp()
);
create index invoices_by_order on invoices (order_id);

-- What takes an invoice back: the effect of `OrderCancelled`. An invoice that was sent is never changed or deleted.
create table credit_notes (
    -- No unique key on order_id, for the reason given at `invoices`.
    id bigint generated always as identity primary key,
    order_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    event_id uuid not null,
    issued_at timestamptz not null default clock_timestamp()
);
create index credit_notes_by_order on credit_notes (order_id);

-- The orders that are off. A creation that comes after its cancellation finds the note here and invoices nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when there was no invoice yet: the two events were applied in the wrong order. The outcome is right all the
    -- same, but the order of one order's events is a promise of its own, and this is how its breach is seen.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
