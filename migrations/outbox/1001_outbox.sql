-- The transactional outbox. `shared/outbox` applies this in the schema of each service that publishes.

create table outbox (
    -- The order of publishing. The database gives it, not an application's clock. Within one aggregate it follows
    -- the order of commits, because changes of an aggregate wait for each other on its row. Across aggregates it
    -- does NOT follow commits (a sequence is drawn before the commit): nothing may ever read it as a cursor
    -- (`seq > last`), or rows that commit late are skipped for good.
    seq bigint generated always as identity primary key,
    -- The event's identity: a UUIDv7 made by the writer. It becomes the `message_id` of every attempt to publish,
    -- so that consumers recognise the second copy. A new id for each attempt could not be deduplicated.
    event_id uuid not null unique,
    -- What the event is about. Order is promised per aggregate, so this is the unit of ordering.
    aggregate_type text not null,
    aggregate_id uuid not null,
    -- 1, 2, 3 … per aggregate: published as `sequence`, so that a consumer can see a gap.
    aggregate_version integer not null check (aggregate_version > 0),
    event_type text not null,
    -- The version of the body's schema. A reader sets aside what it does not know.
    schema_version smallint not null check (schema_version > 0),
    -- The message body, as it will be published: a snapshot taken when the event happened, never read again from
    -- the business tables. `json`, not `jsonb`: these are the bytes that were written, in the order written.
    payload json not null,
    -- W3C trace context of the request that caused the event; becomes message headers.
    headers jsonb not null default '{}',
    -- Which lane the aggregate travels in: computed by the application from `aggregate_id`, because the database's
    -- own hash functions may change between versions. See `outbox_lanes`.
    lane smallint not null check (lane between 0 and 15),
    created_at timestamptz not null default clock_timestamp(),
    -- When the next attempt may be made, by the database's clock: relays on machines whose clocks disagree still
    -- agree about this.
    available_at timestamptz not null default clock_timestamp(),
    -- Attempts that this event itself failed: refused or unroutable. A broker that is away burns none.
    attempts smallint not null default 0 check (attempts >= 0),
    last_error text,
    -- Set only after the broker confirmed. Null means "owed".
    published_at timestamptz,
    -- Set when the retry schedule is exhausted: the event waits for an operator, and so do later events of the same
    -- aggregate. All others go on.
    parked_at timestamptz,

    -- An aggregate's history has no two third events. Also serves `GET /orders/{id}`, which tells that history.
    unique (aggregate_id, aggregate_version),
    check (published_at is null or parked_at is null)
);

-- What is owed, by lane, in order: the claim reads the head of this index. Published rows leave it, so it stays as
-- small as the backlog however large the history grows.
create index outbox_owed on outbox (lane, seq) where published_at is null and parked_at is null;

-- Events that have failed at least once: later events of the same aggregate look here before they go ahead. Almost
-- always empty, so writers pay nothing for it.
create index outbox_troubled on outbox (aggregate_id, seq) where published_at is null and attempts > 0;

-- Rows are inserted, updated once and never again: vacuum by the default 20 % would let a million dead index
-- entries gather at the head of `outbox_owed` first.
alter table outbox set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.02);

-- How far published events have been erased (`docs/retention.md`). One row: an instance that erases holds its lock for
-- the time of one statement, so that several take turns, and what was erased is written in that very statement.
create table outbox_retention (
    only_row boolean primary key default true check (only_row),
    -- Events that were published before this moment may be gone. Whoever counts (`demo verify`) knows from this which
    -- event is missing for a good reason, and that all others have to be there.
    erased_before timestamptz not null default '-infinity',
    erased bigint not null default 0
);
insert into outbox_retention default values;

-- A lane is a fixed share of all aggregates, and the right to publish them: a relay holds the row lock of a lane
-- while it publishes that lane's events, so two relays never work on one aggregate. The lock lives as long as the
-- relay's database session. There is no lease to expire, and no clock to trust.
create table outbox_lanes (
    lane smallint primary key check (lane between 0 and 15)
);
insert into outbox_lanes (lane) select generate_series(0, 15);
-- Too few changes for autovacuum ever to look at it, and without statistics the planner assumes a thousand rows.
analyze outbox_lanes;

-- For writers that are not the service itself (a migration, an operator, a batch job): wake the relays after the
-- commit, in a transaction of its own. Inside the writing transaction it would take a database-wide lock until after
-- the commit's flush, and divide everybody's throughput.
-- The search path is pinned: called from elsewhere, `current_schema()` must still name the schema of this outbox.
create function outbox_wake() returns void language sql set search_path from current as $$
    select pg_notify('outbox:' || current_schema(), '')
$$;
