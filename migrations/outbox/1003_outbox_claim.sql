-- The claim of a relay as one call, sent together with `begin`. With its statements apart a step takes three more round trips.
--
-- Locks up to `max_lanes` lanes that have claimable events, beginning the search at `first_lane`, and reads these events, at
-- most `batch` in all. `scan_from` holds, for each lane, the `seq` after which the lane is read. No row: nothing is claimable.
-- One row without `seq`: other relays hold what is claimable, or have just published it. `more`: there may be other events.
--
-- The lock is on *lane rows*. With `skip locked` on event rows instead, one relay would hold an order's first event while
-- another publishes its second. Lanes that another relay holds are skipped, not waited for.
--
-- Three statements, each with a snapshot of its own: the function is volatile, and the relay's session is read committed. The
-- third snapshot has to be younger than the locks. In one statement with them, an event that the lane's last holder has just
-- marked would still look pending, and one that it has just refused would not hold back its successor. PostgreSQL refuses
-- `for update` in a function that is not volatile, so this cannot be weakened by mistake.
--
-- In PL/pgSQL, which keeps the plans of its statements. A function in SQL would be planned at each call.
create function outbox_claim(first_lane integer, max_lanes integer, batch integer, scan_from bigint[])
returns table (more boolean, seq bigint, lane smallint, event_id uuid, aggregate_id uuid, event_type text,
               payload text, traceparent text, created_at double precision, refused_before boolean)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    heads bigint[];  -- by lane: its first claimable event
    claimable integer;
    locked smallint[];
    per_lane integer;
begin
    heads := array(
        select (select event.seq from outbox_claimable(lanes.lane, scan_from[lanes.lane + 1]) event
                order by event.seq limit 1)
        from outbox_lanes lanes order by lanes.lane);
    claimable := cardinality(array_remove(heads, null));
    if claimable = 0 then
        return;
    end if;
    -- The moving start keeps a busy low lane from starving a high one.
    locked := array(
        select lanes.lane from outbox_lanes lanes where heads[lanes.lane + 1] is not null
        order by (lanes.lane - first_lane + 16) % 16
        limit max_lanes
        for update skip locked);
    per_lane := greatest(batch / greatest(cardinality(locked), 1), 1);
    -- From each lane's head on: what is below it was just walked over. An event that becomes visible there meanwhile is
    -- found by the next scan, and its successors wait for it (rule 2 of `outbox_claimable`).
    --
    -- Times are numbers: the relay reads these rows as text, and its driver cannot parse a time without fraction.
    return query
        select claimable > cardinality(locked) or count(*) over (partition by claimed.lane) >= per_lane, claimed.*
        from unnest(locked) as held (lane)
        cross join lateral (
            select event.seq, event.lane, event.event_id, event.aggregate_id, event.event_type,
                   event.payload::text, event.headers ->> 'traceparent',
                   extract(epoch from event.created_at)::double precision, event.attempts > 0
            from outbox_claimable(held.lane, heads[held.lane + 1] - 1) event
            order by event.seq
            limit per_lane) claimed
        order by claimed.seq;
    if not found then
        more := true;
        return next;
    end if;
end $$;
