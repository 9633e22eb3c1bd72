use events::NewEvent;
use sqlx::PgConnection;

/// Inserts events in the caller's transaction: they become visible to the relay when and only when that commits.
///
/// The caller has changed the aggregates in the same transaction and so holds their row locks. That is why `seq`, the
/// order of publishing, follows the order of commits within an aggregate. Wake the relay after the commit, never
/// before: it would scan, find nothing, and sleep again.
///
/// A service whose whole change is one statement inserts the row in that statement instead (see `place_order` in the
/// order service): one round trip, and no `BEGIN` that a cancelled request could leave open.
///
/// # Errors
/// When the database refuses, for example because an aggregate already has an event with this version. The whole
/// transaction fails with it, which is intended.
pub async fn append(transaction: &mut PgConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    if events.is_empty() {
        return Ok(());
    }
    let column =
        |text: fn(&NewEvent) -> &str| events.iter().map(|event| text(event).to_owned()).collect::<Vec<_>>();
    sqlx::query!(
        "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                             payload, headers, lane)
         select event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                payload::json, headers, lane
         from unnest($1::uuid[], $2::text[], $3::uuid[], $4::int[], $5::text[], $6::smallint[], $7::text[],
                     $8::jsonb[], $9::smallint[]) with ordinality
                  as event (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                            payload, headers, lane, number)
         order by number",
        &events.iter().map(|event| event.event_id).collect::<Vec<_>>(),
        &column(|event| event.aggregate_type),
        &events.iter().map(|event| event.aggregate_id).collect::<Vec<_>>(),
        &events.iter().map(|event| event.aggregate_version).collect::<Vec<_>>(),
        &column(|event| event.event_type),
        &events.iter().map(|event| event.schema_version).collect::<Vec<_>>(),
        &column(|event| &event.payload),
        &events.iter().map(|event| event.headers.clone()).collect::<Vec<_>>(),
        &events.iter().map(|event| event.lane).collect::<Vec<_>>(),
    )
    .execute(transaction)
    .await?;
    Ok(())
}
