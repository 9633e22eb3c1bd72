-- What makes asking twice safe: `Idempotency-Key` on `POST /orders`.

create table idempotency_keys (
    -- As the client sent it. Inserted by the very statement that writes the order: a second request with the key waits
    -- here for the first one's commit, then inserts nothing, and with that no order either.
    key text primary key check (length(key) between 1 and 255),
    -- The order that the first request made. The answer is not kept: all of it can be read from the order, and so can
    -- what was asked for, which tells a repetition from a mistake.
    order_id uuid not null references orders,
    created_at timestamptz not null default clock_timestamp()
);
-- For erasing the oldest. Keys are made by clients, in no order, so the primary key would be walked from end to end.
create index idempotency_keys_by_age on idempotency_keys (created_at);
