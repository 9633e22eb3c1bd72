use events::Draft;
use sqlx::PgConnection;

/// Writes events in the caller's transaction: they become visible, and due, when and only when that commits.
///
/// The caller has changed the aggregates in the same transaction, and so holds their row locks: that is what makes the
/// outbox's order, `seq`, follow the order of commits within an aggregate. Wake the relay after the commit, never
/// before: it would look, see nothing, and go back to sleep.
///
/// A service whose whole change is one statement writes the row in that statement instead (see `place_order` in the
/// order service): one round trip, and no `BEGIN` that a cancelled request could leave behind.
///
/// # Errors
/// When the database refuses, for one because an aggregate already has an event with this version. The transaction
/// is then lost as a whole, which is the point.
pub async fn append(transaction: &mut PgConnection, events: &[Draft]) -> Result<(), sqlx::Error> {
    if events.is_empty() {
        return Ok(());
    }
    let column =
        |text: fn(&Draft) -> &str| events.iter().map(|event| text(event).to_owned()).collect::<Vec<_>>();
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
