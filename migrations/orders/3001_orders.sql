-- The tables of the order service. Amounts are integers in minor units (cents), with the currency in a column beside
-- them.

-- The catalogue: the only source of prices. A client sends products and quantities, never prices.
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
    -- A UUIDv7 made by the service: it cannot be guessed, and is close to insertion order, so the primary key's index
    -- grows at its right edge.
    id uuid primary key,
    customer_id uuid not null,
    -- The state of the order. The service has a table of all transitions (`order_state.rs`). In `reserved` and `paid`
    -- one of the two other services has answered positively.
    status text not null check (status in ('pending', 'reserved', 'paid', 'confirmed', 'cancelled')),
    -- The sum of the lines, computed once by the service when the order was placed: later price changes do not change
    -- existing orders.
    total_amount bigint not null check (total_amount > 0),
    currency text not null check (currency = 'EUR'),
    placed_at timestamptz not null default clock_timestamp(),
    -- The number of the order's events, 1 when placed: the version of the last one. A writer that has read the order
    -- compares it before it writes the next event.
    version integer not null default 1 check (version > 0),
    confirmed_at timestamptz check (confirmed_at is not null or status <> 'confirmed'),
    cancelled_at timestamptz check ((cancelled_at is not null) = (status = 'cancelled')),
    -- Why the order was cancelled: the `cause` of the event.
    cancelled_for text check ((cancelled_for is not null) = (status = 'cancelled'))
);

-- Open orders, which wait for an answer, oldest first: for counting them, and for cancelling those that have waited too
-- long. It contains open orders only, so it stays small however many orders the table holds.
create index orders_open on orders (placed_at) where status in ('pending', 'reserved', 'paid');

create table order_lines (
    order_id uuid not null references orders,
    -- The position in the request, from 1: lines are shown in the order of the request.
    line_number smallint not null check (line_number between 1 and 100),
    -- Without a reference to `products`, whose rows are never deleted: it would lock the product's row for each line, and a
    -- few rows that all orders share then cost more than all the rest of the order's checks.
    sku text not null,
    quantity integer not null check (quantity between 1 and 1000),
    -- The price when the order was placed, copied from the catalogue for the reason given at `total_amount`.
    unit_price bigint not null check (unit_price > 0),
    primary key (order_id, line_number)
);

-- The answers of inventory and billing: the effect of their events in this service. Together with the outbox's rows
-- they are the history that `GET /orders/{id}` shows.
create table answers (
    -- Deliberately without a unique key on event_id or on (order_id, event_type): the inbox alone has to keep an
    -- answer from being applied twice, and a second protection would hide a fault in it.
    id bigint generated always as identity primary key,
    order_id uuid not null references orders,
    event_id uuid not null,
    event_type text not null,
    -- The service that answered: `/inventory` or `/billing`.
    source text not null,
    -- When that service wrote the event, by its own clock, and when the event was applied here.
    occurred_at timestamptz not null,
    applied_at timestamptz not null default clock_timestamp()
);
create index answers_by_order on answers (order_id);
