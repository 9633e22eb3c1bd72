-- What the payment provider owns: a ledger of its own, kept by another company. Amounts are integers in minor units
-- (cents).

-- Every attempt to take money that the provider has answered, or meant to.
create table charges (
    -- A UUIDv7 made by the provider: what a refund names.
    id uuid primary key,
    -- What the caller calls its purchase: here the order. There is deliberately no unique key on it. Real providers take
    -- the same reference as often as it comes; only `Idempotency-Key` keeps a caller from charging twice, and a net here
    -- would hide the day on which it forgets the key.
    reference uuid not null,
    -- Whose money it is. Some have none; the id tells which (`charges.rs`).
    customer_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    -- Declined attempts are kept too: a repeated key has to get the same refusal, although the customer may have money
    -- by now. Nothing ever changes the status.
    status text not null check (status in ('captured', 'declined')),
    -- What has been given back: the sum of this charge's refunds, kept by the statement that inserts each of them. It
    -- stands here, and is not added up when needed, because a statement that has waited for this row's lock sees the row
    -- as it is now, and the table `refunds` as it was before it waited.
    refunded bigint not null default 0 check (refunded between 0 and amount and (refunded = 0 or status = 'captured')),
    created_at timestamptz not null default clock_timestamp()
);
-- For people and for whoever compares the books: all that happened under one reference.
create index charges_by_reference on charges (reference);

-- What was given back, in part or in whole. A charge can have several.
create table refunds (
    id uuid primary key,
    charge_id uuid not null references charges,
    amount bigint not null check (amount > 0),
    created_at timestamptz not null default clock_timestamp()
);
create index refunds_by_charge on refunds (charge_id);

-- What makes asking twice safe. A row is inserted by the very statement that writes the charge or the refund; a request
-- without a key leaves none. Never erased: a real provider forgets a key after a day or so, and charges again.
create table known_keys (
    -- As the caller sent it. One name space for charges and refunds, so that a key which is used for both is noticed.
    key text primary key check (length(key) between 1 and 255),
    -- What the first request made. The answer is not kept: all of it can be read from there, and so can what was asked
    -- for, which tells a repetition from a mistake.
    charge_id uuid references charges,
    refund_id uuid references refunds,
    check (num_nonnulls(charge_id, refund_id) = 1)
);
