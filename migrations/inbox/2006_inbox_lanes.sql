-- Transactions of one consumer run at the same time when their events are of different lanes: its partitions share the work.
-- Two that have a lane in common run one after the other, whatever queue or operator their events come from. The locks are on
-- lanes, because a partition changes with the number of partitions, and the lane of an aggregate never does.
--
-- The lock of the whole consumer is shared here. `inbox_lock` and processes of the release before this one take it alone.
--
-- The rest is `inbox_first_time` without lanes (2005), which that release calls.
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
