-- `Idempotency-Key` on `POST /orders`: it makes repeated requests safe.

create table idempotency_keys (
    -- The key that the client sent. The statement that writes the order inserts it: a second request with the key waits
    -- here for the first one's commit, then inserts no key, and so no order either.
    --
    -- Keys are compared byte by byte. The default collation is the operating system's, and an upgrade of that may sort text
    -- in another way than an index was built: a key that the index does not find is a second order.
    key text collate "C" primary key check (length(key) between 1 and 255),
    -- The order that the first request placed. The answer itself is not stored: it can be built from the order. So
    -- can the first request, which distinguishes a repetition from a reused key.
    order_id uuid not null references orders,
    created_at timestamptz not null default clock_timestamp()
);
-- For retention, which erases the oldest keys. Clients make the keys, in no order, so without this index retention
-- would read the whole table.
create index idempotency_keys_by_age on idempotency_keys (created_at);
