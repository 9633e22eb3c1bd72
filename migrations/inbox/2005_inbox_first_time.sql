-- The lock of a consumer, sent together with `begin`: one transaction of it at a time. The key is that of processes that take
-- it without this function, so that old and new ones exclude each other during a roll-out.
create function inbox_lock(consumer text) returns void language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended(current_schema || '.' || consumer, 0))
$$;

-- The beginning of a consumer's transaction as one call, sent together with `begin`. With lock and record apart it takes one
-- more round trip for each group.
--
-- Takes the consumer's lock, records the events of a group as processed, and returns those that are new; or those that are
-- `behind` a dead letter, and then nothing may be applied.
--
-- The insert has a snapshot younger than the lock, because the function is volatile and the session is read committed: so it
-- sees what the transaction that held the lock before has committed.
--
-- In PL/pgSQL, which keeps the plans of its statements. A function in SQL would be planned at each call.
create function inbox_first_time(in_consumer text, in_queue text, keeps_order boolean,
                                 ids uuid[], types text[], aggregates uuid[])
returns table (event_id uuid, behind boolean) language plpgsql volatile as $$
#variable_conflict use_column
declare
    returned integer;
begin
    perform inbox_lock(in_consumer);
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
    -- The retention time of a copy's record begins anew. While one of an event's queues is full, its relay publishes it again
    -- and again, and the other queues get a copy each time, however long that lasts. Once an hour at most, because copies
    -- may come every few seconds.
    if returned < cardinality(ids) then
        update processed_events set processed_at = clock_timestamp()
        where consumer = in_consumer and event_id = any(ids)
          and processed_at < clock_timestamp() - interval '1 hour';
    end if;
end $$;
