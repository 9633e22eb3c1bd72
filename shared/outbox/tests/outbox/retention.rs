//! Erasing published events. The tests write the events' ages instead of waiting.

use std::time::Duration;

use database::{Erase, Pool, PoolKind, Retention, Round, Window};
use testbed::eventually;
use uuid::Uuid;

use crate::support::{DEADLINE, EventState, Outbox, pool};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

fn retention(outbox: &Outbox) -> Retention<impl Erase + use<>> {
    outbox::retention(outbox.pool.clone(), WEEK)
}

#[tokio::test]
async fn published_events_are_erased_after_the_retention_time_and_not_before() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(3, "7 days 1 minute").await?;
    outbox.insert_published(2, "6 days 23 hours").await?;
    let mut retention = retention(&outbox);
    assert_eq!(retention.round().await?, Round { erased: 3, windows: 1 });
    assert_eq!(outbox.count().await?, 2);
    assert_eq!(retention.round().await?.erased, 0);

    sqlx::query("update outbox set published_at = published_at - interval '2 hours'")
        .execute(&outbox.pool)
        .await?;
    assert_eq!(retention.round().await?.erased, 2, "they are old enough now");
    Ok(())
}

#[tokio::test]
async fn unpublished_events_are_never_erased_however_old_they_are() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(1, "20 years").await?;
    let (pending, refused, parked) = (
        outbox.append(Uuid::now_v7(), 1).await?,
        outbox.append(Uuid::now_v7(), 1).await?,
        outbox.append(Uuid::now_v7(), 1).await?,
    );
    outbox.insert_published(1, "20 years").await?;
    sqlx::query(
        "update outbox set created_at = now() - interval '10 years', available_at = now() - interval '10 years',
                attempts = (event_id <> $1)::int,
                parked_at = case when event_id = $2 then now() - interval '10 years' end
         where published_at is null",
    )
    .bind(pending)
    .bind(parked)
    .execute(&outbox.pool)
    .await?;
    let mut shortest = outbox::retention(outbox.pool.clone(), Duration::ZERO);
    assert_eq!(shortest.round().await?.erased, 2);
    assert_eq!(shortest.round().await?.erased, 0);
    assert_eq!(outbox.state(pending).await?, EventState::PENDING);
    assert_eq!(outbox.state(refused).await?, EventState { attempts: 1, ..EventState::PENDING });
    assert_eq!(outbox.state(parked).await?, EventState { attempts: 1, parked: true, published: false });
    Ok(())
}

#[tokio::test]
async fn round_erases_window_by_window_and_stops_at_young_events() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(2500, "8 days").await?;
    outbox.insert_published(10_000, "1 day").await?;
    let mut retention = retention(&outbox);
    // The third window has old and young rows. Its newest row is young, so the 9,500 rows behind it are not read.
    assert_eq!(retention.round().await?, Round { erased: 2500, windows: 3 });
    assert_eq!(retention.round().await?, Round { erased: 0, windows: 1 });
    Ok(())
}

#[tokio::test]
async fn next_round_does_not_read_the_rows_that_stay() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(5000, "8 days").await?;
    sqlx::query("update outbox set published_at = null, parked_at = now(), attempts = 10")
        .execute(&outbox.pool)
        .await?;
    outbox.insert_published(1500, "8 days").await?;
    outbox.insert_published(10, "1 day").await?;
    let mut retention = retention(&outbox);
    assert_eq!(retention.round().await?, Round { erased: 1500, windows: 7 });
    assert_eq!(
        retention.round().await?,
        Round { erased: 0, windows: 1 },
        "it begins behind the parked events"
    );
    Ok(())
}

#[tokio::test]
async fn two_instances_take_turns_and_erase_each_event_once() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let pending = outbox.append(Uuid::now_v7(), 1).await?;
    outbox.insert_published(5000, "8 days").await?;

    // While one instance erases, another does not wait for it.
    let mut turn = outbox.pool.begin().await?;
    sqlx::query("select from outbox_retention for update").execute(&mut *turn).await?;
    assert_eq!(retention(&outbox).round().await?, Round::default());
    turn.rollback().await?;

    let (mut one, mut other) = (retention(&outbox), retention(&outbox));
    let (first, second) = tokio::try_join!(one.round(), other.round())?;
    let later = one.round().await?;
    assert_eq!(first.erased + second.erased + later.erased, 5000);
    assert_eq!((outbox.count().await?, outbox.state(pending).await?), (1, EventState::PENDING));
    let sql = "select erased, erased_before between now() - interval '7 days 5 minutes' and now() - interval '7 days'
               from outbox_retention";
    let recorded: (i64, bool) = sqlx::query_as(sql).fetch_one(&outbox.pool).await?;
    assert_eq!(recorded, (5000, true), "how many events were erased, and up to which time");
    Ok(())
}

#[tokio::test]
async fn event_that_is_replayed_while_it_is_erased_stays() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(1, "8 days").await?;
    let mut operator = outbox.pool.begin().await?;
    sqlx::query("update outbox set published_at = null").execute(&mut *operator).await?;
    let mut retention = retention(&outbox);
    let erasing = tokio::spawn(async move { retention.round().await });
    let waits = "select exists (select from pg_stat_activity
                                where datname = current_database() and wait_event_type = 'Lock')";
    eventually("the erasing statement to wait for the row", DEADLINE, async || {
        let waits: bool = sqlx::query_scalar(waits).fetch_one(&outbox.pool).await?;
        Ok(waits.then_some(()))
    })
    .await?;
    operator.commit().await?;
    assert_eq!(erasing.await??.erased, 0);
    assert_eq!(outbox.count().await?, 1);
    Ok(())
}

/// Connections whose clock is ahead by what the table `clock` says: this schema's function hides the server's.
async fn settable_clock(outbox: &Outbox) -> anyhow::Result<Pool> {
    sqlx::raw_sql(
        "create table clock (ahead interval); insert into clock values ('0');
         create function clock_timestamp() returns timestamptz language sql volatile
             as 'select pg_catalog.clock_timestamp() + (select ahead from orders.clock)'",
    )
    .execute(&outbox.pool)
    .await?;
    let url = format!("{}?options=-csearch_path%3Dorders,pg_catalog", outbox.url());
    Ok(pool(&url, 2, PoolKind::Transactions))
}

/// Sets the clock with its first window, and always has another window.
struct SetsTheClock;

impl Erase for SetsTheClock {
    type Key = i64;
    const FIRST_KEY: i64 = 0;

    async fn erase_window(
        &self,
        pool: &Pool,
        after: i64,
        _: i64,
    ) -> Result<Option<Window<i64>>, sqlx::Error> {
        sqlx::query("update clock set ahead = '31 days'").execute(pool).await?;
        Ok(Some(Window {
            last: Some(after + 1),
            erased: 1,
            some_are_young: false,
            is_full: true,
            more: true,
        }))
    }
}

#[tokio::test]
async fn round_ends_when_the_clock_is_set_between_two_windows() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut retention = Retention::new("test", settable_clock(&outbox).await?, SetsTheClock);
    assert_eq!(retention.round().await?, Round { erased: 1, windows: 1 });
    assert_eq!(retention.round().await?, Round::default(), "the next round erases by a clock that was set");
    Ok(())
}

/// A process that starts beside a wrong clock has no earlier look to compare with. It would erase everything.
#[tokio::test]
async fn new_process_erases_nothing_while_the_database_clock_differs_from_its_own() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(3, "1 day").await?;
    let clock = settable_clock(&outbox).await?;
    for (ahead, erased) in [("31 days", 0), ("31 days", 0), ("0", 0), ("0", 0)] {
        sqlx::query("update clock set ahead = $1::text::interval").bind(ahead).execute(&outbox.pool).await?;
        assert_eq!(outbox::retention(clock.clone(), WEEK).round().await?.erased, erased, "{ahead} ahead");
    }
    outbox.insert_published(2, "8 days").await?;
    assert_eq!(outbox::retention(clock, WEEK).round().await?.erased, 2, "the clocks agree again");
    Ok(())
}

#[tokio::test]
async fn rows_that_a_wrong_clock_has_dated_ahead_do_not_stop_the_walks() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(1_000, "-30 days").await?;
    outbox.insert_published(1_500, "8 days").await?;
    assert_eq!(retention(&outbox).round().await?.erased, 1_500);

    // A month later these rows are as young as others, and only the full walk passes them.
    sqlx::query("update outbox set created_at = now(), published_at = now()").execute(&outbox.pool).await?;
    outbox.insert_published(10, "8 days").await?;
    assert_eq!(retention(&outbox).round().await?.erased, 0);
    sqlx::query("update outbox_retention set full_walk_at = now() - interval '2 days'")
        .execute(&outbox.pool)
        .await?;
    assert_eq!(retention(&outbox).round().await?.erased, 10);
    Ok(())
}

#[tokio::test]
async fn row_that_cannot_be_erased_stays_alone() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(1_500, "8 days").await?;
    sqlx::raw_sql(
        "create function keep() returns trigger language plpgsql as $$ begin raise exception 'this row cannot be deleted'; end $$;
         create trigger keep before delete on outbox for each row when (old.seq = 700) execute function keep()",
    )
    .execute(&outbox.pool)
    .await?;
    assert_eq!(retention(&outbox).round().await?.erased, 1_499);
    assert_eq!(outbox.count().await?, 1);
    Ok(())
}
