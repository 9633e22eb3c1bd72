-- Events that an operator gave up. They are moved here rather than marked in `outbox`: the relay's claim then has no
-- third state to know of, and an event that waited behind one goes on as if it had never been there.

create table outbox_discarded (
    -- Every column as it was, payload included: it can still be read, and written again by hand.
    like outbox,
    discarded_at timestamptz not null default clock_timestamp(),
    -- Why, in the operator's words. Consumers see a gap in `sequence`, and this is what explains it.
    note text not null,
    primary key (event_id)
);
-- An order's history, with what is missing from it.
create index outbox_discarded_by_aggregate on outbox_discarded (aggregate_id);
