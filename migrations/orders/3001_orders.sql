-- What the order service owns. Amounts are integers in minor units (cents); the currency stands beside them.

-- The catalogue: the only place where prices come from. A client names what it wants, never what it costs.
create table products (
    sku text primary key check (sku ~ '^[A-Z0-9-]{1,32}$'),
    name text not null,
    unit_price bigint not null check (unit_price > 0),
    currency text not null check (currency = 'EUR')
);
insert into products (sku, name, unit_price, currency) values
    ('TEA-001', 'Assam, 100 g', 625, 'EUR'),
    ('TEA-002', 'Sencha, 100 g', 890, 'EUR'),
    ('TEA-003', 'Darjeeling first flush, 50 g', 1290, 'EUR'),
    ('TEA-004', 'Earl Grey, 100 g', 540, 'EUR'),
    ('MUG-001', 'Stoneware mug', 1450, 'EUR'),
    ('MUG-002', 'Glass cup with strainer', 1990, 'EUR'),
    ('POT-001', 'Cast-iron teapot', 6900, 'EUR'),
    ('POT-002', 'Porcelain teapot', 4250, 'EUR'),
    ('POT-003', 'Teapot, thrown by hand: the last hundred', 18500, 'EUR');

create table orders (
    -- A UUIDv7 made by the service: unguessable, and close to insertion order, so the primary key's index grows at
    -- its right edge.
    id uuid primary key,
    customer_id uuid not null,
    -- Where it is in its life; which moves there are is a table in the service (`order_state.rs`). `reserved` and `paid`
    -- are halfway: one of the two services has said yes.
    status text not null check (status in ('pending', 'reserved', 'paid', 'confirmed', 'cancelled')),
    -- The sum of the lines, computed once by the service when the order was placed: later price changes do not
    -- rewrite history.
    total_amount bigint not null check (total_amount > 0),
    currency text not null check (currency = 'EUR'),
    placed_at timestamptz not null default clock_timestamp(),
    -- Counts the order's events, 1 when placed: the version of the last one, and what a writer compares with before it
    -- writes the next for an order that it has read.
    version integer not null default 1 check (version > 0),
    confirmed_at timestamptz check (confirmed_at is not null or status <> 'confirmed'),
    cancelled_at timestamptz check ((cancelled_at is not null) = (status = 'cancelled')),
    -- Why it is off: the `cause` of the event.
    cancelled_for text check ((cancelled_for is not null) = (status = 'cancelled'))
);

-- The orders that still wait for an answer, oldest first: for counting them, and for giving up those that have waited too
-- long. As small as what is under way, however many orders there are.
create index orders_open on orders (placed_at) where status in ('pending', 'reserved', 'paid');

create table order_lines (
    order_id uuid not null references orders,
    -- The position in the request, from 1: lines come back in the order in which they were asked for.
    line_number smallint not null check (line_number between 1 and 100),
    sku text not null references products,
    quantity integer not null check (quantity between 1 and 1000),
    -- The price at the moment of ordering, copied from the catalogue for the reason given at `total_amount`.
    unit_price bigint not null check (unit_price > 0),
    primary key (order_id, line_number)
);

-- What inventory and billing have said about an order: the effect of their events here, and with the outbox's rows the
-- story that `GET /orders/{id}` tells.
create table answers (
    -- There is deliberately no unique key on event_id or on (order_id, event_type): the inbox alone has to keep an answer
    -- from being taken twice.
    id bigint generated always as identity primary key,
    order_id uuid not null references orders,
    event_id uuid not null,
    event_type text not null,
    -- Who says so: `/inventory` or `/billing`.
    source text not null,
    -- When it was written there, by that writer's clock, and when it was applied here.
    occurred_at timestamptz not null,
    applied_at timestamptz not null default clock_timestamp()
);
create index answers_by_order on answers (order_id);
