-- How a relay claims events. `outbox_claim` is what it calls.

-- The claim predicate: the events of one lane that a relay may publish now, reading only `seq > scan_from`
-- (docs/scan-watermark.md says why; 0 reads the whole lane). The relay uses it in two statements, and PostgreSQL
-- inlines the function into each of them, so it costs the same as its text in place.
--
-- An event is claimable when it is pending, not parked, and, if it has failed before, when its back-off has ended. It
-- is not claimable while
--   1. an older event of its aggregate backs off or is parked: publishing it first would break the order; or
--   2. an older event of its aggregate is pending where this scan does not read before it: at or below `scan_from`, or
--      above the event itself. At or below: that event's back-off has just ended, or an operator has just released it, or
--      it committed late; the next full scan finds it. Above: within an aggregate the version decides, and `seq` follows
--      it only as long as the sequence has no cache; or
--   3. it, or an older event of its aggregate, is held back (`outbox_held_back`).
--
-- `statement_timestamp()` is one moment for the whole statement. With a running clock, a refused event could be found
-- not claimable, and a moment later its successor not blocked any more. An event that never failed is claimable whatever
-- its `available_at` says, for the same reason: nothing would block its successor.
--
-- The longest back-off is five minutes. An `available_at` that is more than six minutes ahead comes from a clock that has
-- been set back since, and counts as passed; the event, and all later ones of its aggregate, would wait for as long as the
-- clock was wrong.
--
-- `offset 0` keeps the planner from turning a condition into a join with all pending events.
create function outbox_claimable(in_lane smallint, scan_from bigint) returns setof outbox language sql stable as $$
    select event.* from outbox event
    where event.lane = in_lane and event.seq > scan_from
      and event.published_at is null and event.parked_at is null
      and (event.attempts = 0 or event.available_at <= statement_timestamp()
          or event.available_at > statement_timestamp() + interval '6 minutes')
      and not exists (
          select from outbox older
          where older.aggregate_id = event.aggregate_id and older.seq < event.seq
            and older.published_at is null and older.attempts > 0
            and (older.parked_at is not null or older.available_at > statement_timestamp()
                and older.available_at <= statement_timestamp() + interval '6 minutes') offset 0)
      and (event.aggregate_version = 1 or not exists (
          select from outbox unread
          where unread.aggregate_id = event.aggregate_id and unread.aggregate_version < event.aggregate_version
            and (unread.seq <= scan_from or unread.seq > event.seq) and unread.published_at is null))
      -- The first part is computed once for the whole statement.
      and (not exists (select from outbox_held_back) or not exists (
          select from outbox_held_back held join outbox pending using (seq)
          where held.aggregate_id = event.aggregate_id and held.seq <= event.seq and pending.published_at is null
            and (held.parked_at is not null or held.available_at > statement_timestamp()
                and held.available_at <= statement_timestamp() + interval '6 minutes') offset 0))
$$;

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

-- After a claim has failed, holds back what cannot be read among the next claimable events of each lane.
create function outbox_hold_back_unreadable(most integer, waits double precision[]) returns void
language plpgsql volatile as $$
declare
    next record;
begin
    for next in select lanes.lane, event.seq from outbox_lanes lanes cross join lateral (
                    select seq from outbox_claimable(lanes.lane, 0) order by seq limit most) event loop
        begin
            -- Computed from all of its bytes. From 0 on, as in the claim: read from here on, it would wait for the older events
            -- of its aggregate.
            perform md5(event.payload::text), event.headers ->> 'traceparent'
                from outbox_claimable(next.lane, 0) event where event.seq = next.seq;
        exception when others then
            perform outbox_hold_back(next.seq, sqlerrm, waits);
        end;
    end loop;
end $$;
