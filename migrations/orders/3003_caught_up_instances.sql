-- Whether each instance has applied the answers that waited for it, and of which partitions it knows that it is the consumer. An
-- order is cancelled for the lack of an answer only while nobody may hold that answer. Written only while an order is late; not
-- logged, because it is worth nothing after a restart.
create unlogged table caught_up_instances (
    instance uuid primary key,
    caught_up boolean not null,
    partitions smallint[] not null,
    reported_at timestamptz not null default clock_timestamp()
);
