-- Optional, as 1004 is. The log relay also halts when its publication is gone, and before it has created a slot where any
-- connection would count as a standby.

-- The publication with which the slot's log can be decoded: PostgreSQL looks it up as it was at each change, so changes from
-- while there was none, or another, fail again and again.
alter table outbox_log_slot add column publication oid;
update outbox_log_slot set publication = (select oid from pg_publication where pubname = current_schema() || '_outbox');

-- As in 1004, but a publication that was dropped is not created again while there is a slot: `outbox_log_state` says so.
create or replace function outbox_log_publish() returns void language plpgsql set search_path from current as $$
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

-- As in 1004, with the publication.
create or replace function outbox_log_create() returns void language plpgsql set search_path from current as $$
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
    perform pg_create_logical_replication_slot(new_slot, 'pgoutput');
    insert into outbox_log_slot (slot, system_identifier, publication)
        select new_slot, system_identifier, (select oid from pg_publication where pubname = current_schema() || '_outbox')
        from pg_control_system();
end $$;

-- As in 1004. Without a slot there is a row only if none may be created: `slot` is empty then.
create or replace function outbox_log_state()
returns table (slot text, publication text, system_identifier text, halted text, active boolean, lag_bytes double precision)
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
           coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), slots.confirmed_flush_lsn), 0)::double precision
    from (select system_identifier, current_setting('synchronous_standby_names') like '%*%' as any_standby
          from pg_control_system()) server
    left join outbox_log_slot kept on true
    left join pg_replication_slots slots on slots.slot_name = kept.slot and slots.database = current_database()
    where kept.slot is not null or server.any_standby
$$;
