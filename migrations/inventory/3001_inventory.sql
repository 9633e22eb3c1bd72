-- What the inventory service owns.

-- What is in the warehouse and what of it is spoken for. Seeded here: the catalogue's products, under the same SKUs.
-- The service knows nothing of the orders schema; the SKU is all that the two share.
create table stock (
    sku text primary key,
    on_hand bigint not null check (on_hand >= 0),
    -- The sum of all reservations of this SKU that are not released. Kept beside them, so that "how many are left" is one row; that the
    -- two agree is one of the sums that `demo verify` checks.
    reserved bigint not null default 0
);
insert into stock (sku, on_hand) values
    ('TEA-001', 1000000), ('TEA-002', 1000000), ('TEA-003', 1000000), ('TEA-004', 1000000),
    ('MUG-001', 1000000), ('MUG-002', 1000000), ('POT-001', 1000000), ('POT-002', 1000000);

-- One row per order line: the effect of `OrderCreated` here.
create table reservations (
    -- There is deliberately no unique key on (order_id, line_number). The inbox alone has to keep the effect from
    -- happening twice; a second net here would hide the day on which the first one tears.
    id bigint generated always as identity primary key,
    order_id uuid not null,
    line_number smallint not null,
    sku text not null references stock,
    quantity integer not null check (quantity > 0),
    -- The event that caused it: from any effect one can walk back to its cause.
    event_id uuid not null,
    reserved_at timestamptz not null default clock_timestamp(),
    -- The event that took it back, and when: the effect of `OrderCancelled`. The row stays, as a record of what was.
    released_by uuid,
    released_at timestamptz
);
create index reservations_by_order on reservations (order_id);

-- The orders that are off. A creation that comes after its cancellation finds the note here and reserves nothing.
create table cancelled_orders (
    order_id uuid primary key,
    event_id uuid not null,
    -- True when nothing had been reserved yet: the two events were applied in the wrong order. The outcome is right all
    -- the same, but the order of one order's events is a promise of its own, and this is how its breach is seen.
    came_first boolean not null,
    noted_at timestamptz not null default clock_timestamp()
);
