-- What the inventory service owns.

-- What is in the warehouse and what of it is spoken for. Seeded here: the catalogue's products, under the same SKUs.
-- The service knows nothing of the orders schema; the SKU is all that the two share.
create table stock (
    sku text primary key,
    on_hand bigint not null check (on_hand >= 0),
    -- The sum of all reservations of this SKU that are held. Kept beside them, so that "how many are left" is one row; that
    -- the two agree is one of the sums that `demo verify` checks. The limits are what the service decides by, under this
    -- row's lock; here they ring if it ever decides wrongly.
    reserved bigint not null default 0 check (reserved between 0 and on_hand)
);
insert into stock (sku, on_hand) values
    ('TEA-001', 1000000), ('TEA-002', 1000000), ('TEA-003', 1000000), ('TEA-004', 1000000),
    ('MUG-001', 1000000), ('MUG-002', 1000000), ('POT-001', 1000000), ('POT-002', 1000000),
    -- Hand-made, and soon gone: for orders that cannot be had.
    ('POT-003', 100);

-- What was answered to an order: the effect of `OrderCreated` here, and the aggregate of the events that this service
-- publishes (its id is their `subject`).
create table reservations (
    id uuid primary key,
    -- There is deliberately no unique key on order_id. The inbox alone has to keep the effect from happening twice; a
    -- second net here would hide the day on which the first one tears.
    order_id uuid not null,
    -- The event that caused it: from any effect one can walk back to its cause.
    event_id uuid not null,
    -- `rejected` is an answer too: there was too little, and nothing was put aside.
    state text not null check (state in ('held', 'rejected', 'released')),
    decided_at timestamptz not null default clock_timestamp(),
    -- The event that took it back, and when: the effect of `OrderCancelled`. The row stays, as a record of what was.
    released_by uuid,
    released_at timestamptz,
    check ((state = 'released') = (released_by is not null)),
    check ((released_by is null) = (released_at is null))
);
create index reservations_by_order on reservations (order_id);

-- What is put aside, line by line. A rejected order has none.
create table reservation_lines (
    reservation_id uuid not null references reservations,
    -- The position in the order, from 1.
    line_number smallint not null,
    sku text not null references stock,
    quantity integer not null check (quantity > 0),
    primary key (reservation_id, line_number)
);

-- The orders that are off. A creation that comes after its cancellation finds the note here and reserves nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when nothing had been answered yet: the two events were applied in the wrong order. The outcome is right all
    -- the same, but the order of one order's events is a promise of its own, and this is how its breach is seen.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
