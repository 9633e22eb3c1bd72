-- The outbox of the contract. The judge creates it for an entrant that brings no set-up command.
create table outbox (
    seq               bigint generated always as identity primary key,
    event_id          uuid        not null unique,    -- published as message_id
    aggregate_id      uuid        not null,           -- whose events stay in order
    aggregate_version integer     not null,           -- 1, 2, 3
    routing_key       text        not null,
    payload           json        not null,           -- the message's body
    created_at        timestamptz not null default clock_timestamp(),
    attempts          smallint    not null default 0, -- for the relay: refusals by the broker
    available_at      timestamptz not null default clock_timestamp(),    -- for the relay: when to try again
    published_at      timestamptz,                    -- null: pending
    unique (aggregate_id, aggregate_version)
);
create index outbox_pending on outbox (seq) where published_at is null;
create index outbox_unpublished on outbox (aggregate_id, seq) where published_at is null;
