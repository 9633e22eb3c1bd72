-- The transactional outbox. `shared/outbox` applies this in the schema of each service that publishes.

create table outbox (
    -- The order of publishing, given by the database and not by an application's clock. Within one aggregate it
    -- follows the order of commits, because changes of an aggregate wait for each other on its row. Across aggregates
    -- it does NOT follow commits, because the sequence's value is drawn before the commit. A reader that uses it as a
    -- cursor (`seq > last`) skips rows that commit late, for good.
    seq bigint generated always as identity primary key,
    -- The event's identity: a UUIDv8 that the writer derives from `aggregate_id`, `aggregate_version` and `event_type`
    -- (`derived_id` in `envelope.rs`). Every attempt to publish sends it as `message_id`, so that consumers recognize a
    -- duplicate. They could not recognize one with a new id for each attempt; nor, with a random id, an answer that the
    -- writer gives a second time after its database was restored.
    event_id uuid not null unique,
    -- The aggregate that the event is about: the unit of ordering.
    aggregate_type text not null,
    aggregate_id uuid not null,
    -- 1, 2, 3 … per aggregate. Published as `sequence`, so that a consumer can see a gap.
    aggregate_version integer not null check (aggregate_version > 0),
    event_type text not null,
    -- The version of the body's schema. A consumer sets an event of an unknown version aside as a dead letter.
    schema_version smallint not null check (schema_version > 0),
    -- The message body, as it will be published: a snapshot from the moment of the event. The relay never reads the
    -- business tables. `json` and not `jsonb`, because `json` keeps the text as it was written.
    payload json not null,
    -- W3C trace context of the request that caused the event. Published as message headers.
    headers jsonb not null default '{}',
    -- The aggregate's lane, computed by the application from `aggregate_id`, because PostgreSQL's hash functions may
    -- change between versions. See `outbox_lanes`.
    lane smallint not null check (lane between 0 and 15),
    created_at timestamptz not null default clock_timestamp(),
    -- When the next attempt may be made, by the database's clock: relays on machines with different clocks agree on it.
    available_at timestamptz not null default clock_timestamp(),
    -- Attempts in which the broker refused this event (negative acknowledgement, unroutable, too large). Attempts
    -- while the broker is unavailable do not count.
    attempts smallint not null default 0 check (attempts >= 0),
    last_error text,
    -- Set only after the broker's confirm. Null means pending.
    published_at timestamptz,
    -- Set when all retries have failed: the event waits for an operator, and later events of the same aggregate wait
    -- behind it. Events of other aggregates do not.
    parked_at timestamptz,

    -- One event per version of an aggregate. `GET /orders/{id}` reads an order's history by this index.
    unique (aggregate_id, aggregate_version),
    check (published_at is null or parked_at is null)
);

-- Pending events by lane, in order: a claim reads the head of this index. Published rows leave it, so it stays as
-- small as the backlog, however many published events the table holds.
create index outbox_pending on outbox (lane, seq) where published_at is null and parked_at is null;

-- Pending events that have failed at least once: a claim checks here whether an earlier event of the same aggregate has
-- failed. Almost always empty, so it costs writers nothing.
create index outbox_failed on outbox (aggregate_id, seq) where published_at is null and attempts > 0;

-- Events that were published more than ten minutes after they were created, because of an outage, a refusal or a replay: a
-- replay of a period finds the others by their `seq`. Empty as a rule.
create index outbox_published_late on outbox (seq, published_at) where published_at - created_at > interval '10 minutes';

-- Each row is inserted, updated once, and never again. With the default of 20 %, a million dead index entries would
-- collect at the head of `outbox_pending` before a vacuum.
alter table outbox set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.02);

-- Events that an operator has discarded. They are moved here and not marked in `outbox`: so the relay's claim needs no
-- third state, and an event that waited behind a discarded one is published as if that had never existed.
create table outbox_discarded (
    -- Every column unchanged, with the payload: an operator can still read the event and insert it again.
    like outbox,
    discarded_at timestamptz not null default clock_timestamp(),
    -- The operator's reason. Consumers see a gap in `sequence`, and this explains it.
    note text not null,
    primary key (event_id)
);
-- For the history of an aggregate, with the events that are missing from it.
create index outbox_discarded_by_aggregate on outbox_discarded (aggregate_id);

-- Events whose rows PostgreSQL cannot read or mark (a corrupt value, a constraint or a trigger that was added later). Without
-- this table, one such row fails its whole batch, and the batch's events are published again and again.
--
-- Each is tried again alone, after growing waits, and in the end waits for an operator; the later events of its aggregate wait
-- behind it. Not in `outbox`: there their rows cannot be written. Normally empty. A row whose event has been published or
-- discarded since means nothing.
create table outbox_held_back (
    seq bigint primary key,
    aggregate_id uuid not null,
    attempts smallint not null default 1,
    available_at timestamptz not null,
    -- What PostgreSQL said.
    reason text not null,
    -- Set when all retries have failed. An operator repairs the row in `outbox`, then deletes this one.
    parked_at timestamptz
);
create index outbox_held_back_by_aggregate on outbox_held_back (aggregate_id);

-- Holds an event back. `waits`: the limits of the waits after each failure, in seconds.
create function outbox_hold_back(in_seq bigint, why text, waits double precision[])
returns table (event_id uuid, event_type text, aggregate_id uuid, attempts smallint, parked boolean)
language sql volatile as $$
    with held as (
        insert into outbox_held_back as held (seq, aggregate_id, available_at, reason)
        select seq, aggregate_id, clock_timestamp() + random() * waits[1] * interval '1 second', why
        from outbox where seq = in_seq
        on conflict (seq) do update
            set attempts = held.attempts + 1, reason = why,
                available_at = clock_timestamp() + random() * coalesce(waits[held.attempts + 1], 0) * interval '1 second',
                parked_at = case when held.attempts + 1 >= cardinality(waits) then clock_timestamp() end
        returning *
    )
    select event.event_id, event.event_type, event.aggregate_id, held.attempts, held.parked_at is not null
    from held join outbox event using (seq)
$$;

-- How far published events have been erased (`docs/retention.md`). One row: an instance that erases events locks it for
-- one statement, so that instances take turns, and the same statement records what it has erased.
create table outbox_retention (
    only_row boolean primary key default true check (only_row),
    -- Events that were published before this moment may have been erased. `demo verify` uses it to distinguish an
    -- erased event from a lost one.
    erased_before timestamptz not null default '-infinity',
    erased bigint not null default 0,
    -- When the last walk over the whole table was completed, and after which key the next one continues.
    full_walk_at timestamptz not null default clock_timestamp(),
    full_walk_after bigint not null default 0
);
insert into outbox_retention default values;

-- A lane is a fixed share of all aggregates, and the right to publish their events: a relay holds the row lock of a
-- lane while it publishes that lane's events, so two relays never work on one aggregate. The lock ends with the
-- relay's database session. There is no lease that could expire, and no clock to rely on.
create table outbox_lanes (
    lane smallint primary key check (lane between 0 and 15)
);
insert into outbox_lanes (lane) select generate_series(0, 15);
-- Autovacuum never analyzes a table with so few changes, and without statistics the planner assumes a thousand rows.
analyze outbox_lanes;

-- Wakes the relays, for writers other than the service itself (a migration, an operator, a batch job). Call it after
-- the commit, in a transaction of its own: inside the writing transaction it would hold a server-wide lock until
-- after the commit's flush to disk, and every other commit that notifies would wait for it. The search path is fixed: called from
-- another schema, `current_schema()` must still name the schema of this outbox.
create function outbox_wake() returns void language sql set search_path from current as $$
    select pg_notify('outbox:' || current_schema(), '')
$$;
