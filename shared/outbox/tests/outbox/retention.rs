//! What leaves, when, and above all what does not. Ages are written, not waited for.

use std::time::Duration;

use outbox::{Retention, Round};
use uuid::Uuid;

use crate::support::Outbox;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

fn retention(outbox: &Outbox) -> Retention {
    Retention::new(outbox.pool.clone(), WEEK)
}

#[tokio::test]
async fn a_published_event_is_gone_after_its_time_and_not_before() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(3, "7 days 1 minute").await?;
    outbox.history(2, "6 days 23 hours").await?;
    let mut retention = retention(&outbox);
    assert_eq!(retention.round().await?, Round { erased: 3, windows: 1 });
    assert_eq!(outbox.count().await?, 2);
    assert_eq!(retention.round().await?.erased, 0);

    sqlx::query("update outbox set published_at = published_at - interval '2 hours'")
        .execute(&outbox.pool)
        .await?;
    assert_eq!(retention.round().await?.erased, 2, "their time has come too");
    Ok(())
}

#[tokio::test]
async fn nothing_that_was_not_published_is_ever_erased_however_old_it_is() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(1, "20 years").await?;
    let (owed, refused, parked) = (
        outbox.append(Uuid::now_v7(), 1).await?,
        outbox.append(Uuid::now_v7(), 1).await?,
        outbox.append(Uuid::now_v7(), 1).await?,
    );
    outbox.history(1, "20 years").await?;
    sqlx::query(
        "update outbox set created_at = now() - interval '10 years', available_at = now() - interval '10 years',
                attempts = (event_id <> $1)::int,
                parked_at = case when event_id = $2 then now() - interval '10 years' end
         where published_at is null",
    )
    .bind(owed)
    .bind(parked)
    .execute(&outbox.pool)
    .await?;
    let mut shortest = Retention::new(outbox.pool.clone(), Duration::ZERO);
    assert_eq!(shortest.round().await?.erased, 2);
    assert_eq!(shortest.round().await?.erased, 0);
    assert_eq!(outbox.state(owed).await?, (false, 0, false));
    assert_eq!(outbox.state(refused).await?, (false, 1, false));
    assert_eq!(outbox.state(parked).await?, (false, 1, true));
    Ok(())
}

#[tokio::test]
async fn a_round_takes_small_bites_and_stops_where_everything_is_young() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(2500, "8 days").await?;
    outbox.history(10_000, "1 day").await?;
    let mut retention = retention(&outbox);
    // The third window has old and young rows; its newest is young, so nobody looks at the 9,500 behind it.
    assert_eq!(retention.round().await?, Round { erased: 2500, windows: 3 });
    assert_eq!(retention.round().await?, Round { erased: 0, windows: 1 });
    Ok(())
}

#[tokio::test]
async fn what_stays_behind_is_not_walked_over_in_every_round() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(5000, "8 days").await?;
    sqlx::query("update outbox set published_at = null, parked_at = now(), attempts = 10")
        .execute(&outbox.pool)
        .await?;
    outbox.history(1500, "8 days").await?;
    outbox.history(10, "1 day").await?;
    let mut retention = retention(&outbox);
    assert_eq!(retention.round().await?, Round { erased: 1500, windows: 7 });
    assert_eq!(retention.round().await?, Round { erased: 0, windows: 1 }, "behind the parked ones");
    Ok(())
}

#[tokio::test]
async fn two_instances_at_once_take_turns_and_lose_nothing() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let owed = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.history(5000, "8 days").await?;

    // While one has its turn, the other does not wait for it.
    let mut turn = outbox.pool.begin().await?;
    sqlx::query("select from outbox_retention for update").execute(&mut *turn).await?;
    assert_eq!(retention(&outbox).round().await?, Round::default());
    turn.rollback().await?;

    let (mut one, mut other) = (retention(&outbox), retention(&outbox));
    let (first, second) = tokio::try_join!(one.round(), other.round())?;
    let later = one.round().await?;
    assert_eq!(first.erased + second.erased + later.erased, 5000);
    assert_eq!((outbox.count().await?, outbox.state(owed).await?), (1, (false, 0, false)));
    let sql = "select erased, erased_before between now() - interval '7 days 5 minutes' and now() - interval '7 days'
               from outbox_retention";
    let written: (i64, bool) = sqlx::query_as(sql).fetch_one(&outbox.pool).await?;
    assert_eq!(written, (5000, true), "and the books say what went, and up to when");
    Ok(())
}

#[tokio::test]
async fn an_event_whose_mark_is_taken_back_at_that_moment_stays() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.history(1, "8 days").await?;
    let mut operator = outbox.pool.begin().await?;
    sqlx::query("update outbox set published_at = null").execute(&mut *operator).await?;
    let mut retention = retention(&outbox);
    let erasing = tokio::spawn(async move { retention.round().await });
    let waiting = "select exists (select from pg_locks where not granted)";
    testbed::eventually("the erasing statement to wait for the row", Duration::from_secs(10), async || {
        let waits: bool = sqlx::query_scalar(waiting).fetch_one(&outbox.pool).await?;
        Ok(waits.then_some(()))
    })
    .await?;
    operator.commit().await?;
    assert_eq!(erasing.await??.erased, 0);
    assert_eq!(outbox.count().await?, 1);
    Ok(())
}
