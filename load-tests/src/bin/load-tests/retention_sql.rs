//! A million old events, in one table and in daily partitions, and what takes them away.

/// One window of `shared/outbox/src/retention.rs`, behind `$1`, for events that are older than a week.
pub(crate) const WINDOW: &str = "
    with turn as (
        select clock_timestamp() - interval '7 days' as cutoff from outbox_retention for update skip locked
    ), bite as materialized (
        select seq, created_at, published_at from outbox
        where seq > $1 and exists (select from turn) order by seq limit 1000
    ), gone as (
        delete from outbox using turn
        where outbox.seq > $1 and outbox.seq <= (select max(seq) from bite) and outbox.published_at < turn.cutoff
        returning 1
    ), counted as (
        select count(*) as erased from gone
    ), written as (
        update outbox_retention
        set erased_before = greatest(erased_before, turn.cutoff), erased = outbox_retention.erased + counted.erased
        from turn, counted where counted.erased > 0
    )
    select (select max(seq) from bite) as last, counted.erased from counted";

/// The same table in daily partitions. A unique key of a partitioned table has to hold the partition's own column: that
/// an event id, or an aggregate's version, exists once is no longer something that the database can promise.
pub(crate) const PARTITIONED: &str = "
    create table parted (like outbox including defaults, primary key (created_at, seq),
                         unique (created_at, event_id), unique (created_at, aggregate_id, aggregate_version))
        partition by range (created_at);
    create index parted_owed on parted (lane, seq) where published_at is null and parked_at is null;
    create table parted_old partition of parted for values from (minvalue) to (date_trunc('day', now()) - interval '7 days');
    create table parted_young partition of parted for values from (date_trunc('day', now()) - interval '7 days') to (maxvalue);
    create sequence parted_seq";

/// Copies the history into the partitions.
pub(crate) const FILL_PARTITIONED: &str = "insert into parted select * from outbox";

/// An order's event, as writers write it, into either table.
pub(crate) fn write(table: &str) -> String {
    let (column, value) =
        if table == "outbox" { ("", "") } else { ("seq, ", "nextval('parted_seq') + 100000000, ") };
    format!(
        "\\set lane random(0, 15)
         insert into {table} ({column}event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                              schema_version, payload, lane)
         values ({value}gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{{}}', :lane);"
    )
}
