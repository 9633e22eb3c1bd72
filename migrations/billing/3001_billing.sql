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
