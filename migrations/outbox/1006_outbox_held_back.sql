-- Without this, one bad row fails its whole batch: an event whose row PostgreSQL cannot read or mark (a corrupt value, a
-- constraint or a trigger that was added later) would have the batch published again and again.

-- Such events. Each is tried again alone, after growing waits, and in the end waits for an operator; the later events of its
-- aggregate wait behind it. Not in `outbox`: there their rows cannot be written. Normally empty. A row whose event has
-- been published or discarded since means nothing.
create table outbox_held_back (
    seq bigint primary key,
    aggregate_id uuid not null,
    attempts smallint not null default 1,
    available_at timestamptz not null,
    -- What PostgreSQL said.
    reason text not null,
    -- Set when all retries have failed. An operator repairs the row in `outbox`, then deletes this one.
    parked_at timestamptz
);
create index outbox_held_back_by_aggregate on outbox_held_back (aggregate_id);

-- Holds an event back. `waits`: the limits of the waits after each failure, in seconds.
create function outbox_hold_back(in_seq bigint, why text, waits double precision[])
returns table (event_id uuid, event_type text, aggregate_id uuid, attempts smallint, parked boolean)
language sql volatile as $$
    with held as (
        insert into outbox_held_back as held (seq, aggregate_id, available_at, reason)
        select seq, aggregate_id, clock_timestamp() + random() * waits[1] * interval '1 second', why
        from outbox where seq = in_seq
        on conflict (seq) do update
            set attempts = held.attempts + 1, reason = why,
                available_at = clock_timestamp() + random() * coalesce(waits[held.attempts + 1], 0) * interval '1 second',
                parked_at = case when held.attempts + 1 >= cardinality(waits) then clock_timestamp() end
        returning *
    )
    select event.event_id, event.event_type, event.aggregate_id, held.attempts, held.parked_at is not null
    from held join outbox event using (seq)
$$;

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

-- As in 1001, with two changes. An event is not claimable while
--   2. an older event of its aggregate is pending where this scan does not read before it: at or below `scan_from`, or above the
--      event itself. Within an aggregate the version decides: `seq` follows it only as long as the sequence has no cache; and
--   3. it, or an older event of its aggregate, is held back.
create or replace function outbox_claimable(in_lane smallint, scan_from bigint) returns setof outbox language sql stable as $$
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

-- As in 1005, but `lag_bytes` counts from `restart_lsn`: from there on the server keeps its log. `safe_bytes`: how much more may
-- be written before the slot is lost, or infinity where nothing limits it (`max_slot_wal_keep_size`).
drop function outbox_log_state();
create function outbox_log_state()
returns table (slot text, publication text, system_identifier text, halted text, active boolean, lag_bytes double precision,
               safe_bytes double precision)
language sql volatile set search_path from current as $$
    select coalesce(kept.slot::text, ''), current_schema() || '_outbox', coalesce(kept.system_identifier::text, ''),
           case when kept.system_identifier <> server.system_identifier
                    then 'its slot belongs to another server'
                when server.any_standby
                    then 'synchronous_standby_names contains *, so its connection would count as a standby: name the standbys'
                when slots.slot_name is null and exists (select from pg_replication_slots where slot_name = kept.slot)
                    then 'its slot is of another database of this server: this one was copied'
                when slots.slot_name is null
                    then 'its slot does not exist: it was dropped, or a fail-over led to a server without it'
                when slots.wal_status = 'lost'
                    then 'its slot is lost: the server has removed log that was not read (max_slot_wal_keep_size)'
                when not exists (select from pg_publication where pg_publication.oid = kept.publication
                                                              and pubname = current_schema() || '_outbox')
                    then 'its publication was dropped or renamed: the log from then on cannot be decoded'
           end,
           coalesce(slots.active, false),
           coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), slots.restart_lsn), 0)::double precision,
           coalesce(slots.safe_wal_size::double precision,
                    case when slots.wal_status = 'lost' then 0 else 'Infinity'::double precision end)
    from (select system_identifier, current_setting('synchronous_standby_names') like '%*%' as any_standby
          from pg_control_system()) server
    left join outbox_log_slot kept on true
    left join pg_replication_slots slots on slots.slot_name = kept.slot and slots.database = current_database()
    where kept.slot is not null or server.any_standby
$$;
