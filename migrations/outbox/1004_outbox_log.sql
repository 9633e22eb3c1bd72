-- Optional. Without it: only the polling relay. `docs/log-relay.md` describes the relay that reads the write-ahead log
-- (`ORDERS_RELAY=log`). Nothing here is used by the polling relay, and nothing here needs `wal_level = logical` until a log relay
-- starts.

-- The replication slot of this outbox. No row: no log relay has ever run here, so it may create the slot. With a row, a missing
-- slot was lost, and a new one would hide that: the relay halts until an operator calls `outbox_log_drop()`.
create table outbox_log_slot (
    only_row boolean primary key default true check (only_row),
    slot name not null,
    -- Of the server that has the slot. A copy of this database on another server has the row too, and no slot that fits it.
    system_identifier bigint not null,
    -- The publication with which the slot's log can be decoded: PostgreSQL looks it up as it was at each change, so changes
    -- from while there was none, or another, fail again and again.
    publication oid,
    created_at timestamptz not null default clock_timestamp()
);

-- Creates the publication, if there is none, and adds the table, if it is not in it: a restore in place has dropped it, and with
-- it its place in the publication. In a transaction before the slot's: the log is decoded with the catalog as it was at each
-- change, and a change from before the publication could never be decoded. For the same reason a publication that was dropped
-- is not created again while there is a slot: `outbox_log_state` says that it is gone.
--
-- The table's owner calls it, with the right to create in the database. Inserts only: the relay's marks are updates.
create function outbox_log_publish() returns void language plpgsql set search_path from current as $$
declare
    publication name := current_schema() || '_outbox';
    content text := 'table outbox (seq, event_id, aggregate_id, event_type, payload, headers, lane)';
begin
    if not exists (select from pg_publication where pubname = publication) then
        if not exists (select from outbox_log_slot) then
            execute format('create publication %I for %s with (publish = ''insert'')', publication, content);
        end if;
    elsif not exists (select from pg_publication_rel join pg_publication on pg_publication.oid = prpubid
                      where pubname = publication and prrelid = 'outbox'::regclass) then
        execute format('alter publication %I add %s', publication, content);
    end if;
end $$;

-- Creates the slot and its row, if there is no row. It waits for all transactions that are running. The role needs the
-- attribute `replication`. Two instances wait for each other. A slot without a row was left by an instance that died between
-- the two: no relay has read from it. The slot is created before anything is written, or PostgreSQL would refuse it.
create function outbox_log_create() returns void language plpgsql set search_path from current as $$
declare
    new_slot name := left(regexp_replace(lower(current_database() || '_' || current_schema()), '[^a-z0-9_]', '_', 'g'), 56)
                     || '_outbox';
begin
    perform pg_advisory_xact_lock(hashtext('outbox_log:' || current_schema()));
    if exists (select from outbox_log_slot) then
        return;
    end if;
    perform pg_drop_replication_slot(slot_name) from pg_replication_slots
        where slot_name = new_slot and database = current_database();
    -- From PostgreSQL 17 on a standby can keep a copy of the slot (`sync_replication_slots`), with which the relay goes on after a
    -- failover.
    if current_setting('server_version_num')::int >= 170000 then
        execute 'select pg_create_logical_replication_slot($1, ''pgoutput'', failover => true)' using new_slot;
    else
        perform pg_create_logical_replication_slot(new_slot, 'pgoutput');
    end if;
    insert into outbox_log_slot (slot, system_identifier, publication)
        select new_slot, system_identifier, (select oid from pg_publication where pubname = current_schema() || '_outbox')
        from pg_control_system();
end $$;

-- For an operator: drops the slot and forgets it. After a slot was lost, the log relay goes on with a new one, and publishes what
-- is pending from the table. After the change to the polling relay, the server keeps no log for the slot any more. It fails
-- while a relay reads from the slot.
create function outbox_log_drop() returns void language plpgsql set search_path from current as $$
begin
    perform pg_advisory_xact_lock(hashtext('outbox_log:' || current_schema()));
    perform pg_drop_replication_slot(slot_name) from pg_replication_slots join outbox_log_slot on slot_name = slot
        where database = current_database();
    delete from outbox_log_slot;
end $$;

-- The slot: why it cannot be used (null: it can), and whether a relay reads from it. `lag_bytes`: how much log the server keeps
-- for it, from its `restart_lsn` on. `safe_bytes`: how much more may be written before the slot is lost, or infinity where
-- nothing limits it (`max_slot_wal_keep_size`). Without a slot there is a row only if none may be created: `slot` is empty then.
--
-- With `*` in `synchronous_standby_names` a log relay counts as a synchronous standby: it would wait for itself, or a commit
-- would be acknowledged that no standby has.
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

-- The claim of a log relay: locks lanes of these events, and returns the positions of those that it keeps: `claimed`, if it may
-- be published now, given that the relay has read all earlier events of the log. Otherwise it waits, because another relay
-- holds its lane, or because its transaction is not visible yet: the log is ahead of that, for as long as a commit waits for
-- the synchronous standby. The relay passes all others: events that are published or discarded; refused ones, and those behind an
-- earlier event of their aggregate that is pending and not among these. `outbox_claim` finds those that are pending when their
-- turn comes.
--
-- An event is known by `seq` *and* `event_id`. After the table was restored in place the sequence gives numbers again that the log
-- has given to others, and a mark by `seq` alone would be set on an event that was never sent.
--
-- Two statements, as in `outbox_claim`: the second has a snapshot that is younger than the locks. The log has the lower half
-- of a transaction's id: the half above is that of the snapshot's end, unless they lie on both sides of its step.
create function outbox_claim_logged(seqs bigint[], event_ids uuid[], transactions bigint[])
returns table (nth bigint, claimed boolean)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    locked smallint[];
begin
    locked := array(
        select lane from outbox_lanes where lane in (select lane from outbox where event_id = any(event_ids))
        order by lane for update skip locked);
    return query
        select entry.nth, event.seq is not null and event.lane = any(locked)
        from unnest(seqs, event_ids, transactions) with ordinality entry (seq, event_id, transaction, nth)
        cross join lateral (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as id) next
        left join outbox event using (seq, event_id)
        where case
            when event.seq is null then not pg_visible_in_snapshot(
                (next.id + (((entry.transaction - next.id) << 32) >> 32))::text::xid8, pg_current_snapshot())
            when not event.lane = any(locked) then true
            else event.published_at is null and event.attempts = 0
                and (event.aggregate_version = 1 or not exists (
                    select from outbox older
                    where older.aggregate_id = event.aggregate_id and older.aggregate_version < event.aggregate_version
                      and older.published_at is null and (older.attempts > 0 or not older.event_id = any(event_ids))))
            end;
end $$;
