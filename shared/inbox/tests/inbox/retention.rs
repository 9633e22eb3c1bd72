//! How long processed events are kept, and what happens to a copy that arrives later. The tests write the records' ages
//! instead of waiting.

use std::time::Duration;

use database::{Erase, Pool, Retention, Round};

use crate::support::{TestInbox, event, record};

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

fn retention(pool: &Pool) -> Retention<impl Erase + use<>> {
    inbox::retention(pool.clone(), "billing", MONTH)
}

/// Inserts records whose ids and times are of this age.
async fn insert_processed(pool: &Pool, consumer: &str, records: i64, age: &str) -> anyhow::Result<()> {
    let sql = "insert into processed_events (consumer, event_id, event_type, processed_at)
               select $1, (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0')
                           || '7' || substr(md5(random()::text), 1, 3)
                           || '8' || substr(md5(random()::text), 1, 15))::uuid,
                      'OrderCreated', at
               from (select clock_timestamp() - $3::text::interval as at from generate_series(1, $2)) as records";
    sqlx::query(sql).bind(consumer).bind(records).bind(age).execute(pool).await?;
    Ok(())
}

#[tokio::test]
async fn copy_is_dropped_during_the_retention_time_and_applied_again_afterwards() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let event = event();
    let mut retention = retention(pool);
    assert!(record(pool, &event).await?);
    for (age, new) in [("29 days 23 hours", false), ("30 days 1 minute", true)] {
        let older = "update processed_events set processed_at = clock_timestamp() - $1::text::interval";
        sqlx::query(older).bind(age).execute(pool).await?;
        assert_eq!(retention.round().await?.erased, u64::from(new), "{age}");
        // Because of the second case, records must be kept for longer than anything can be published again.
        assert_eq!(record(pool, &event).await?, new, "{age}");
    }
    Ok(())
}

/// While one queue of an event is full, the event is published again and again, and each time this consumer gets a copy.
#[tokio::test]
async fn record_of_an_event_whose_copies_still_come_is_kept() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    let event = event();
    let mut retention = retention(pool);
    assert!(record(pool, &event).await?);
    for days in [20, 40, 60] {
        let older = "update processed_events set processed_at = processed_at - interval '20 days'";
        sqlx::query(older).execute(pool).await?;
        assert_eq!(retention.round().await?.erased, 0, "after {days} days");
        assert!(!record(pool, &event).await?, "after {days} days");
    }
    Ok(())
}

#[tokio::test]
async fn round_erases_window_by_window_and_only_old_records_of_its_consumer() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    insert_processed(pool, "another", 100, "60 days").await?;
    insert_processed(pool, "billing", 2500, "31 days").await?;
    insert_processed(pool, "billing", 10_000, "1 day").await?;
    let mut retention = retention(pool);
    assert_eq!(retention.round().await?, Round { erased: 2500, windows: 4 });
    assert_eq!(retention.round().await?, Round { erased: 0, windows: 1 });
    let left: i64 = sqlx::query_scalar("select count(*) from processed_events").fetch_one(pool).await?;
    assert_eq!(left, 10_100);
    Ok(())
}

#[tokio::test]
async fn two_instances_take_turns_and_erase_each_record_once() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    insert_processed(pool, "billing", 5000, "31 days").await?;
    let (mut one, mut other) = (retention(pool), retention(pool));
    let (first, second) = tokio::try_join!(one.round(), other.round())?;
    let later = one.round().await?;
    assert_eq!(first.erased + second.erased + later.erased, 5000);
    let recorded: i64 = sqlx::query_scalar("select erased from inbox_retention").fetch_one(pool).await?;
    assert_eq!(recorded, 5000);
    Ok(())
}

/// Ids of another source need not have the order of time: a walk that ends at the first young window would never find the
/// old records behind it.
#[tokio::test]
async fn full_walk_erases_old_records_behind_young_ones() -> anyhow::Result<()> {
    let TestInbox { pool, .. } = &TestInbox::new().await?;
    insert_processed(pool, "billing", 1500, "1 day").await?;
    let random = "insert into processed_events (consumer, event_id, event_type, processed_at)
                  select 'billing', ('ff' || substr(gen_random_uuid()::text, 3))::uuid, 'OrderCreated',
                         clock_timestamp() - interval '31 days'
                  from generate_series(1, 700)";
    sqlx::query(random).execute(pool).await?;
    assert_eq!(retention(pool).round().await?, Round { erased: 0, windows: 1 });
    // The service is restarted more often than once a day, and at last a day after the last walk.
    let later = "update inbox_retention set full_walk_at = full_walk_at - make_interval(hours => $1)";
    sqlx::query(later).bind(23).execute(pool).await?;
    assert_eq!(retention(pool).round().await?, Round { erased: 0, windows: 1 });
    sqlx::query(later).bind(2).execute(pool).await?;
    let mut retention = retention(pool);
    assert_eq!(retention.round().await?, Round { erased: 700, windows: 3 });
    assert_eq!(
        retention.round().await?,
        Round { erased: 0, windows: 1 },
        "the next round is an ordinary one"
    );
    Ok(())
}
