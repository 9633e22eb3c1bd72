-- The inbox of an idempotent consumer. `shared/inbox` applies this in the schema of each service that consumes.

create table processed_events (
    -- Which consumer: one service may have several, each applying the same event once.
    consumer text not null,
    -- The event's identity, the same in every copy that is delivered.
    event_id uuid not null,
    event_type text not null,
    -- When the effect was committed: this row and the effect are one transaction, so it is also when the effect
    -- became visible. The database's clock.
    processed_at timestamptz not null default clock_timestamp(),

    -- This key is the whole mechanism. The second copy of an event, at the same moment or a week later, waits for the
    -- first one's transaction and then inserts nothing; the handler sees that and applies nothing.
    primary key (consumer, event_id)
);

-- How far a consumer's memory has been erased (`docs/retention.md`). An instance that erases holds this row's lock for
-- the time of one statement, so that several take turns, and what was erased is written in that very statement.
create table inbox_retention (
    consumer text primary key,
    -- Records older than this may be gone: a copy of such an event would be applied again. Whoever counts
    -- (`demo verify`) knows from this which record is missing for a good reason.
    forgotten_before timestamptz not null default '-infinity',
    forgotten bigint not null default 0
);
