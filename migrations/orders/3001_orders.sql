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
    ('POT-002', 'Porcelain teapot', 4250, 'EUR');

create table orders (
    -- A UUIDv7 made by the service: unguessable, and close to insertion order, so the primary key's index grows at
    -- its right edge.
    id uuid primary key,
    customer_id uuid not null,
    -- `pending` until the other services have answered.
    status text not null check (status in ('pending', 'confirmed', 'cancelled')),
    -- The sum of the lines, computed once by the service when the order was placed: later price changes do not
    -- rewrite history.
    total_amount bigint not null check (total_amount > 0),
    currency text not null check (currency = 'EUR'),
    placed_at timestamptz not null default clock_timestamp(),
    -- Counts the changes, 1 when placed: the version that the next event gets, and what a writer compares with before
    -- it changes an order that it has read.
    version integer not null default 1 check (version > 0),
    cancelled_at timestamptz check ((cancelled_at is not null) = (status = 'cancelled'))
);

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
