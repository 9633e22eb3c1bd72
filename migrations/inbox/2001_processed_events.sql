-- The inbox of an idempotent consumer. `shared/inbox` applies this in the schema of each service that consumes.

create table processed_events (
    -- The consumer. One service may have several, and each applies the same event once.
    consumer text not null,
    -- The event's identity, the same in every delivery.
    event_id uuid not null,
    event_type text not null,
    -- When the effect was committed, by the database's clock: this row and the effect are written in one transaction. A
    -- copy that comes more than an hour later sets it again: while copies come, the row must stay.
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

-- The lock of a whole consumer, sent together with `begin` by a transaction that may change any of its dead letters: no other
-- transaction of the consumer runs meanwhile, in whatever lanes.
create function inbox_lock(consumer text) returns void language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended(current_schema || '.' || consumer, 0))
$$;

-- The beginning of a consumer's transaction as one call, sent together with `begin`. With locks and record apart it takes one
-- more round trip for each group.
--
-- Takes the locks, records the events of a group as processed, and returns those that are new; or those that are `behind` a
-- dead letter (`2002_dead_letters.sql`), and then nothing may be applied.
--
-- Transactions of one consumer run at the same time when their events are of different lanes: its partitions share the work.
-- Two that have a lane in common run one after the other, whatever queue or operator their events come from. The locks are on
-- lanes, because a partition changes with the number of partitions, and the lane of an aggregate never does. The lock of the
-- whole consumer is shared here; `inbox_lock` takes it alone.
--
-- The insert has a snapshot younger than the locks, because the function is volatile and the session is read committed: so it
-- sees what the transactions that held the locks before have committed.
--
-- In PL/pgSQL, which keeps the plans of its statements. A function in SQL would be planned at each call.
create function inbox_first_time(in_consumer text, in_queue text, keeps_order boolean,
                                 ids uuid[], types text[], aggregates uuid[], lanes integer[])
returns table (event_id uuid, behind boolean) language plpgsql volatile as $$
#variable_conflict use_column
declare
    lock_name text := current_schema || '.' || in_consumer;
    returned integer;
begin
    perform pg_advisory_xact_lock_shared(hashtextextended(lock_name, 0));
    -- In ascending order: two groups cannot deadlock.
    perform pg_advisory_xact_lock(hashtextextended(lock_name || '.' || lane, 0))
    from (select distinct lane from unnest(lanes) as of_event (lane) order by lane) as ascending;
    -- A dead letter that is tried again waits only behind those that were saved before it. A letter whose event was applied
    -- all the same, by another delivery or from a second publishing, holds nothing back.
    return query
        with arrived as (
            select * from unnest(ids, types, aggregates) as a (event_id, event_type, aggregate_id)
        ), held as materialized (
            select event_id from arrived
            where keeps_order and exists (
                select from dead_letters older
                where older.queue = in_queue and older.subject = arrived.aggregate_id and older.resolved_at is null
                  and older.event_id is distinct from arrived.event_id
                  and not exists (
                      select from processed_events applied
                      where applied.consumer = in_consumer and applied.event_id = older.event_id
                  )
                  and not exists (
                      select from dead_letters own
                      where own.queue = in_queue and own.event_id = arrived.event_id and own.resolved_at is null
                        and own.id < older.id
                  )
            ) and not exists (
                select from processed_events done
                where done.consumer = in_consumer and done.event_id = arrived.event_id
            )
        ), inserted as (
            insert into processed_events (consumer, event_id, event_type)
            select in_consumer, event_id, event_type from arrived where event_id not in (select event_id from held)
            on conflict do nothing
            returning event_id
        )
        select event_id, false from inserted union all select event_id, true from held;
    get diagnostics returned = row_count;
    -- The retention time of a copy's record begins again. While one of an event's queues is full, its relay publishes it again
    -- and again, and the other queues get a copy each time, however long that lasts. Once an hour at most, because copies
    -- may come every few seconds.
    if returned < cardinality(ids) then
        update processed_events set processed_at = clock_timestamp()
        where consumer = in_consumer and event_id = any(ids)
          and processed_at < clock_timestamp() - interval '1 hour';
    end if;
end $$;
