-- The inbox of an idempotent consumer. `shared/inbox` applies this in the schema of each service that consumes.

create table processed_events (
    -- The consumer. One service may have several, and each applies the same event once.
    consumer text not null,
    -- The event's identity, the same in every delivery.
    event_id uuid not null,
    event_type text not null,
    -- When the effect was committed, by the database's clock: this row and the effect are written in one transaction. A
    -- copy that comes more than an hour later sets it anew: while copies come, the row has to stay.
    processed_at timestamptz not null default clock_timestamp(),

    -- This key is what makes consumers idempotent. A duplicate of an event, at the same moment or a week later, waits
    -- for the first one's transaction and then inserts nothing; the handler sees that and applies nothing.
    primary key (consumer, event_id)
);

-- How far a consumer's records have been erased (`docs/retention.md`). An instance that erases records locks this row
-- for one statement, so that instances take turns, and the same statement records what it has erased.
create table inbox_retention (
    consumer text primary key,
    -- Older records may have been erased: a duplicate of such an event would be applied again. `demo verify` uses it to
    -- distinguish an erased record from a missing one.
    erased_before timestamptz not null default '-infinity',
    erased bigint not null default 0,
    -- When the last walk over the whole table was completed, and after which key the next one continues.
    full_walk_at timestamptz not null default clock_timestamp(),
    full_walk_after uuid not null default '00000000-0000-0000-0000-000000000000'
);
