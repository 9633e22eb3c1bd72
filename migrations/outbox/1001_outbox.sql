-- The transactional outbox. `shared/outbox` applies this in the schema of each service that publishes.

create table outbox (
    -- The order of publishing, given by the database and not by an application's clock. Within one aggregate it
    -- follows the order of commits, because changes of an aggregate wait for each other on its row. Across aggregates
    -- it does NOT follow commits, because the sequence's value is drawn before the commit. A reader that uses it as a
    -- cursor (`seq > last`) skips rows that commit late, for good.
    seq bigint generated always as identity primary key,
    -- The event's identity: a UUIDv7 made by the writer. Every attempt to publish sends it as `message_id`, so that
    -- consumers recognise a duplicate. They could not recognise one with a new id for each attempt.
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
-- Autovacuum never analyses a table with so few changes, and without statistics the planner assumes a thousand rows.
analyze outbox_lanes;

-- The claim predicate: the events of one lane that a relay may publish now, reading only `seq > scan_from`
-- (docs/scan-watermark.md says why; 0 reads the whole lane). The relay uses it in two statements, and PostgreSQL
-- inlines the function into each of them, so it costs the same as its text in place.
--
-- An event is claimable when it is pending, not parked, and, if it has failed before, when its back-off has ended. It
-- is not claimable while
--   1. an older event of its aggregate backs off or is parked: publishing it first would break the order; or
--   2. an older event of its aggregate is pending at or below `scan_from`, where this scan does not read. That event's
--      back-off has just ended, or an operator has just released it, or it committed late; the next full scan finds it.
--
-- `statement_timestamp()` is one moment for the whole statement. With a running clock, a refused event could be found
-- not claimable, and a moment later its successor not blocked any more. An event that never failed is claimable whatever
-- its `available_at` says, for the same reason: nothing would block its successor.
--
-- The longest back-off is five minutes. An `available_at` that is more than six minutes ahead comes from a clock that has been set
-- back since, and counts as passed; the event, and all later ones of its aggregate, would wait for as long as the clock
-- was wrong.
--
-- `offset 0` keeps the planner from turning a condition into a join with all pending events.
create function outbox_claimable(in_lane smallint, scan_from bigint) returns setof outbox language sql stable as $$
    select event.* from outbox event
    where event.lane = in_lane and event.seq > scan_from
      and event.published_at is null and event.parked_at is null
      and (event.attempts = 0 or event.available_at <= statement_timestamp()
          or event.available_at > statement_timestamp() + interval '6 minutes')
      and not exists (
          select from outbox older
          where older.aggregate_id = event.aggregate_id and older.seq < event.seq
            and older.published_at is null and older.attempts > 0
            and (older.parked_at is not null or older.available_at > statement_timestamp()
                and older.available_at <= statement_timestamp() + interval '6 minutes') offset 0)
      and (event.aggregate_version = 1 or not exists (
          select from outbox unread
          where unread.aggregate_id = event.aggregate_id and unread.aggregate_version < event.aggregate_version
            and unread.seq <= scan_from and unread.published_at is null))
$$;

-- Wakes the relays, for writers other than the service itself (a migration, an operator, a batch job). Call it after
-- the commit, in a transaction of its own: inside the writing transaction it would hold a server-wide lock until
-- after the commit's flush to disk, and all other commits would wait for it. The search path is fixed: called from
-- another schema, `current_schema()` must still name the schema of this outbox.
create function outbox_wake() returns void language sql set search_path from current as $$
    select pg_notify('outbox:' || current_schema(), '')
$$;
