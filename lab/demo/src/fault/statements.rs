//! The SQL of the faults that a database can have.

/// No queue is bound for `unwanted`.
pub(super) const WRITE_UNROUTABLE: &str = "
    insert into orders.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                               payload, lane)
    select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'Unwanted', 1, '{}', number % 16
    from generate_series(1, 4000) as number";
pub(super) const ERASE_UNROUTABLE: &str = "delete from orders.outbox where event_type = 'Unwanted'";

/// The error of a full disk, for each mark of an event of the order service. Orders wait while this waits for its lock.
pub(super) const REFUSE_MARKS: &str = "
    set lock_timeout = '5s';
    create or replace function refuse_mark() returns trigger language plpgsql as $$
    begin raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
    create or replace trigger disk_full before update of published_at on orders.outbox
        for each row execute function refuse_mark();";
pub(super) const ACCEPT_MARKS: &str = "drop trigger if exists disk_full on orders.outbox";

/// The table into which a service inserts when it applies the first event of an order.
pub(super) const APPLICATIONS: [(&str, &str); 2] = [("inventory", "reservations"), ("billing", "payments")];

/// Makes inserts into a table fail for good over one order in a hundred, the same ones in each table.
pub(super) fn add_defect(table: &str) -> String {
    format!(
        "create or replace function refuse() returns trigger language plpgsql as $$
         begin
             if abs(hashtext(new.order_id::text)) % 100 = 0 then
                 raise exception 'a defect' using errcode = 'check_violation';
             end if;
             return new;
         end $$;
         create trigger defect before insert on {table} for each row execute function refuse()"
    )
}

/// Makes the insert of the dead letter of one message fail for good.
pub(super) fn refuse_dead_letter(message_id: &str) -> String {
    format!(
        "create function refuse_letter() returns trigger language plpgsql as $$
         begin
             if new.message_id = '{message_id}' then
                 raise exception 'refused' using errcode = 'check_violation';
             end if;
             return new;
         end $$;
         create trigger refuse_letter before insert on dead_letters
             for each row execute function refuse_letter()"
    )
}

pub(super) const TERMINATE_SESSIONS: &str = "select pg_terminate_backend(pid) from pg_stat_activity
    where usename = current_user and pid <> pg_backend_pid()";
