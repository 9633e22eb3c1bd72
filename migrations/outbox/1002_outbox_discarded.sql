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
