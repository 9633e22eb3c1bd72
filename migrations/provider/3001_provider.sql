-- The tables of the payment provider: the records of another company. Amounts are integers in minor units (cents).

-- Every attempt to charge a customer, captured or declined.
create table charges (
    -- A UUIDv7 made by the provider. A refund names its charge by it.
    id uuid primary key,
    -- The caller's name for the purchase: here the order. Deliberately without a unique key: real providers accept
    -- the same reference any number of times, and only `Idempotency-Key` keeps a caller from charging twice. A unique
    -- key here would hide a caller that sends no key.
    reference uuid not null,
    -- The customer who is charged. Some have no money; the id says which (`charges.rs`).
    customer_id uuid not null,
    amount bigint not null check (amount > 0),
    currency text not null check (currency = 'EUR'),
    -- Declined attempts are stored too: a repeated key has to get the same refusal, although the customer may have
    -- money by then. The status never changes.
    status text not null check (status in ('captured', 'declined')),
    -- The sum of this charge's refunds, updated by the statement that inserts each of them. It is stored here, and not
    -- added up when needed, because a statement that has waited for this row's lock sees the row as it is now, and the
    -- table `refunds` as it was before the wait.
    refunded bigint not null default 0 check (refunded between 0 and amount and (refunded = 0 or status = 'captured')),
    created_at timestamptz not null default clock_timestamp()
);
-- For people and for reconciliation: all charges of one reference.
create index charges_by_reference on charges (reference);

-- Refunds, each of a part or the whole of a charge. A charge can have several.
create table refunds (
    id uuid primary key,
    charge_id uuid not null references charges,
    amount bigint not null check (amount > 0),
    created_at timestamptz not null default clock_timestamp()
);
create index refunds_by_charge on refunds (charge_id);

-- Idempotency keys: they make repeated requests safe. The statement that writes the charge or the refund inserts the
-- row; a request without a key inserts none. Keys are never erased here. A real provider erases a key after about a
-- day, and then charges again.
create table known_keys (
    -- As the caller sent it. Charges and refunds share one key space, so that a key that is used for both is noticed.
    -- Compared byte by byte. The default collation is the operating system's, and an upgrade of that may sort text in another
    -- way than an index was built: a key that the index does not find is a second charge.
    key text collate "C" primary key check (length(key) between 1 and 255),
    -- The charge or the refund that the first request made. The answer itself is not stored: it can be built from that
    -- row. So can the first request, which distinguishes a repetition from a reused key.
    charge_id uuid references charges,
    refund_id uuid references refunds,
    check (num_nonnulls(charge_id, refund_id) = 1)
);
