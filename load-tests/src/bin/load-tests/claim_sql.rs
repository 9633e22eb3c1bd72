//! The relay's own statements, as `shared/outbox/src/claim.rs` has them, with the parameters of a relay that looks at all
//! lanes. A benchmark meets the system from outside, so they stand here once more.

/// What every look asks of an event: due, and not behind an older one of its aggregate that waits, or that is owed below
/// `floor`, where this look begins.
fn due(floor: &str) -> String {
    format!(
        "event.seq > {floor} and event.published_at is null and event.parked_at is null
         and (event.attempts = 0 or event.available_at <= statement_timestamp())
         and not exists (
             select from outbox older
             where older.aggregate_id = event.aggregate_id and older.seq < event.seq
               and older.published_at is null and older.attempts > 0
               and (older.parked_at is not null or older.available_at > statement_timestamp()) offset 0)
         and (event.aggregate_version = 1 or not exists (
             select from outbox unseen
             where unseen.aggregate_id = event.aggregate_id
               and unseen.aggregate_version < event.aggregate_version
               and unseen.seq <= {floor} and unseen.published_at is null))"
    )
}

/// The three statements of a step: lock lanes, see whether anything is due at all, read what is due. `behind` is the
/// floor that the relay keeps for each lane; 0 is a full look.
pub(crate) fn statements(behind: i64) -> [(&'static str, String); 3] {
    let behind = format!("(array_fill({behind}::bigint, array[16]))");
    let [of_lane, of_place, of_locked] = [
        format!("{behind}[outbox_lanes.lane + 1]"),
        "floor.seq".to_owned(),
        format!("{behind}[locked.lane + 1]"),
    ]
    .map(|floor| due(&floor));
    [
        (
            "lock lanes",
            format!(
                "select lane from outbox_lanes
                 where exists (select from outbox event
                               where event.lane = outbox_lanes.lane and {of_lane} offset 0)
                 order by (lane + 16) % 16 limit 8 for update skip locked"
            ),
        ),
        (
            "is anything due",
            format!(
                "select exists (
                     select from unnest({behind}) with ordinality as floor (seq, place)
                     cross join lateral (
                         select from outbox event
                         where event.lane = floor.place - 1 and {of_place} limit 1) due)"
            ),
        ),
        (
            "read what is due",
            format!(
                "select due.seq, due.event_id, due.aggregate_id, due.event_type, due.payload, due.traceparent
                 from unnest(array[0,1,2,3,4,5,6,7]::smallint[]) as locked (lane)
                 cross join lateral (
                     select event.seq, event.event_id, event.aggregate_id, event.event_type,
                            event.payload::text as payload, event.headers ->> 'traceparent' as traceparent
                     from outbox event
                     where event.lane = locked.lane and {of_locked}
                     order by event.seq limit 62) due
                 order by due.seq"
            ),
        ),
    ]
}
