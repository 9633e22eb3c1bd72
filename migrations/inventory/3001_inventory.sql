-- The tables of the inventory service.

-- The stock of each product, and the part of it that is reserved. Filled here with the catalogue's products, under
-- the same SKUs. The service does not know the schema of the order service; they share only the SKUs.
create table stock (
    sku text primary key,
    on_hand bigint not null check (on_hand >= 0),
    -- The sum of all held reservations of this SKU. Stored beside them, so that the free quantity can be read from
    -- one row; `demo verify` checks that the two agree. The service checks these limits under this row's lock. The
    -- constraint makes a wrong decision fail.
    reserved bigint not null default 0 check (reserved between 0 and on_hand)
);
insert into stock (sku, on_hand) values
    ('TEA-001', 1000000), ('TEA-002', 1000000), ('TEA-003', 1000000), ('TEA-004', 1000000),
    ('MUG-001', 1000000), ('MUG-002', 1000000), ('POT-001', 1000000), ('POT-002', 1000000),
    -- Soon out of stock: for orders that are rejected.
    ('POT-003', 100);

-- The answer to each order: the effect of `OrderCreated` in this service, and the aggregate of the events that this
-- service publishes (its id is their `subject`).
create table reservations (
    id uuid primary key,
    -- Deliberately without a unique key on order_id: the inbox alone has to keep the effect from happening twice, and a
    -- second protection would hide a fault in it.
    order_id uuid not null,
    -- The event that caused it: every effect can be traced back to its cause.
    event_id uuid not null,
    -- `rejected` is an answer too: too little was left, and nothing was reserved.
    state text not null check (state in ('held', 'rejected', 'released')),
    decided_at timestamptz not null default clock_timestamp(),
    -- The event that released it, and when: the effect of `OrderCancelled`. The row is kept as a record.
    released_by uuid,
    released_at timestamptz,
    check ((state = 'released') = (released_by is not null)),
    check ((released_by is null) = (released_at is null))
);
create index reservations_by_order on reservations (order_id);

-- The reserved quantities, line by line. A rejected order has none.
create table reservation_lines (
    reservation_id uuid not null references reservations,
    -- The position in the order, from 1.
    line_number smallint not null,
    sku text not null references stock,
    quantity integer not null check (quantity > 0),
    primary key (reservation_id, line_number)
);

-- Cancelled orders. A creation that arrives after its cancellation finds the row here and reserves nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when there was no reservation yet: the two events were applied in the wrong order. The outcome is correct in
    -- spite of it, but the order of one order's events is guaranteed too, and this column shows a violation.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
