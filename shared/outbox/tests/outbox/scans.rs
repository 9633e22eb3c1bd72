//! The cost of a scan follows the pending events, not the history. Costs are counted in pages, which do not depend on
//! the machine's speed.

use std::time::Duration;

use database::{Pool, PoolKind};
use events::lane;
use messaging::{PublishOutcome, Refusal, Step, replay::Selection};
use outbox::{
    observe_backlog,
    parked_events::{ReplayOutcome, Replayed, replay},
};
use sqlx::{Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    NEVER, Outbox, ScriptedBroker, TWO_WEEKS, advance_clock, aggregate_in_lane, event, pool, relay_over,
};

impl Outbox {
    /// Draws sequence numbers and uses none, as transactions that are rolled back do.
    async fn skip_sequence_numbers(&self, numbers: i64) -> anyhow::Result<()> {
        let sql =
            "select count(nextval(pg_get_serial_sequence('outbox', 'seq'))) from generate_series(1, $1)";
        sqlx::query(sql).bind(numbers).execute(&self.pool).await?;
        Ok(())
    }

    /// A pool with one session. PostgreSQL counts pages per session, and publishes the counts later.
    async fn one_session(&self) -> anyhow::Result<Pool> {
        let pool = pool(&self.url(), 1, PoolKind::Transactions);
        // A busy machine may need longer for a test's own statements.
        sqlx::query("set statement_timeout = 0").execute(&pool).await?;
        Ok(pool)
    }
}

/// An outbox for a test that counts pages: those that an autovacuum worker reads would be counted too.
async fn outbox_without_autovacuum() -> anyhow::Result<Outbox> {
    let outbox = Outbox::new().await?;
    sqlx::query("alter table outbox set (autovacuum_enabled = false)").execute(&outbox.pool).await?;
    Ok(outbox)
}

/// While this transaction is open, vacuum removes no row that died after its snapshot. Any transaction in this database does
/// that. The server would end this one after 30 s, and a busy machine may need longer for a test.
async fn hold_back_vacuum(outbox: &Outbox) -> anyhow::Result<PgConnection> {
    let mut transaction = PgConnection::connect(&outbox.url()).await?;
    sqlx::query("set idle_in_transaction_session_timeout = 0").execute(&mut transaction).await?;
    sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut transaction).await?;
    Ok(transaction)
}

/// What PostgreSQL has counted for the outbox: pages that were read, and sequential scans of the whole table.
async fn pages_and_table_scans(pool: &Pool) -> anyhow::Result<(i64, i64)> {
    // In the session that did the work: it would publish its counts only when it is idle.
    sqlx::query("select pg_stat_force_next_flush()").execute(pool).await?;
    let sql = "select (select sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0)
                                  + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))::bigint
                       from pg_statio_user_tables where relid = 'outbox'::regclass),
                      (select seq_scan from pg_stat_user_tables where relid = 'outbox'::regclass)";
    Ok(sqlx::query_as(sql).fetch_one(pool).await?)
}

#[tokio::test]
async fn step_with_a_large_history_reads_few_pages_and_never_the_whole_table() -> anyhow::Result<()> {
    let outbox = outbox_without_autovacuum().await?;
    outbox.insert_published(150_000, "1 day").await?;
    let pool = outbox.one_session().await?;
    sqlx::query("vacuum analyze outbox").execute(&pool).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = relay_over(&pool, &broker, Duration::ZERO);
    for _ in 0..10 {
        // After five executions PostgreSQL may choose a plan that does not depend on the parameters.
        outbox.append(Uuid::now_v7(), 1).await?;
        assert_eq!(relay.step().await?, Step::PublishedAll(1));
    }
    // A relay keeps its session after a step that has published something.
    drop(relay);
    let (before_idle, scans_before) = pages_and_table_scans(&pool).await?;
    let mut relay = relay_over(&pool, &broker, Duration::ZERO);
    assert_eq!(relay.step().await?, Step::Idle);
    let (after_idle, _) = pages_and_table_scans(&pool).await?;
    outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));
    drop(relay);
    let (after_busy, scans_after) = pages_and_table_scans(&pool).await?;
    let (idle, busy) = (after_idle - before_idle, after_busy - after_idle);
    // Two scans of 16 lanes read two or three pages each, and the dead entries of ten steps. The table has thousands.
    assert!((1..=400).contains(&idle), "an idle step read {idle} pages");
    assert!((1..=400).contains(&busy), "a step with one event read {busy} pages");
    assert_eq!(scans_after, scans_before, "a step scanned the whole table");
    Ok(())
}

#[tokio::test]
async fn only_full_scans_read_dead_entries_while_vacuum_is_held_back() -> anyhow::Result<()> {
    let outbox = outbox_without_autovacuum().await?;
    let long_transaction = hold_back_vacuum(&outbox).await?;
    let pool = outbox.one_session().await?;
    outbox.insert_published(100_000, "1 day").await?;
    for sql in [
        "update outbox set published_at = null",
        "update outbox set published_at = now()",
        "vacuum analyze outbox",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }
    let broker = ScriptedBroker::that_confirms();
    // One event in each lane, so that each lane gets a watermark.
    for lane in 0..16 {
        outbox.append(aggregate_in_lane(lane), 1).await?;
    }
    let mut relay = relay_over(&pool, &broker, NEVER);
    let (start, _) = pages_and_table_scans(&pool).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(16), "the first scan is a full one");
    // A relay gives its session back when it finds nothing.
    assert_eq!(relay.step().await?, Step::Idle);
    let (after_both, _) = pages_and_table_scans(&pool).await?;
    assert_eq!(relay.step().await?, Step::Idle);
    let (end, _) = pages_and_table_scans(&pool).await?;
    let partial = end - after_both;
    let full = after_both - start - partial;
    assert!(
        full > 20_000,
        "a full scan read only {full} pages: there were no dead entries, so this test proves nothing"
    );
    assert!(partial < full / 4, "a scan from the watermark read {partial} pages, a full one {full}");
    long_transaction.close().await?;
    Ok(())
}

#[tokio::test]
async fn event_committed_far_below_the_watermark_is_found_by_the_next_full_scan() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    for restart in [false, true] {
        let order = Uuid::now_v7();
        let late = event(order, 1);
        let mut slow = outbox.pool.begin().await?;
        outbox::append(&mut slow, std::slice::from_ref(&late)).await?;
        outbox.skip_sequence_numbers(6000).await?;
        let early = outbox.append(aggregate_in_lane(lane(order)), 1).await?;
        let broker = ScriptedBroker::that_confirms();
        let mut relay = outbox.relay_with_full_scan(&broker, NEVER);
        assert_eq!(relay.step().await?, Step::PublishedAll(1));
        slow.commit().await?;
        assert_eq!(relay.step().await?, Step::Idle, "there is no watermark, so this test proves nothing");
        // A relay that has just started scans in full. So does one whose interval has passed.
        if restart {
            relay = outbox.relay_with_full_scan(&broker, NEVER);
        } else {
            advance_clock(NEVER).await;
        }
        assert_eq!(relay.step().await?, Step::PublishedAll(1));
        assert_eq!(broker.seen(), [early, late.event_id]);
    }
    Ok(())
}

#[tokio::test]
async fn old_events_that_are_pending_again_need_only_one_full_scan() -> anyhow::Result<()> {
    const OLD_EVENTS: usize = 3000;
    let outbox = Outbox::new().await?;
    outbox.insert_published(i64::try_from(OLD_EVENTS)?, "1 day").await?;
    outbox.skip_sequence_numbers(6000).await?;
    for lane in 0..16 {
        outbox.append(aggregate_in_lane(lane), 1).await?;
    }
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_with_full_scan(&broker, NEVER);
    assert_eq!(relay.step().await?, Step::PublishedAll(16), "each lane has a watermark now");
    let replay = "update outbox set published_at = null where created_at < now() - interval '1 hour'";
    sqlx::query(replay).execute(&outbox.pool).await?;
    assert_eq!(relay.step().await?, Step::Idle, "the old events are below the watermarks");

    // The next full scan finds the first of them. The scans after it go on there, without waiting for a full one each.
    advance_clock(NEVER).await;
    let mut published = 0;
    while published < OLD_EVENTS {
        let step = relay.step().await?;
        let (Step::Published(events) | Step::PublishedAll(events)) = step else {
            panic!("{step:?} after {published} events")
        };
        published += events;
    }
    assert_eq!(published, OLD_EVENTS);
    Ok(())
}

#[tokio::test]
async fn watermark_does_not_pass_an_event_with_an_unknown_outcome() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let unknown = outbox.append(order, 1).await?;
    outbox.skip_sequence_numbers(6000).await?;
    let confirmed = outbox.append(aggregate_in_lane(lane(order)), 1).await?;
    let mut first_time = true;
    let broker = ScriptedBroker::new(move |message| {
        let is_unknown = message.id == unknown && std::mem::take(&mut first_time);
        if is_unknown { PublishOutcome::Unknown } else { PublishOutcome::Confirmed }
    });
    let mut relay = outbox.relay_with_full_scan(&broker, NEVER);
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(relay.step().await?, Step::PublishedAll(1), "the watermark has passed a pending event");
    assert_eq!(broker.seen(), [unknown, confirmed, unknown]);
    Ok(())
}

/// The database's clock was 50 minutes ahead when the broker refused an event, and was set back.
#[tokio::test]
async fn event_that_backs_off_by_a_clock_that_was_ahead_is_due_at_once() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    let broker = ScriptedBroker::that_refuses(first, Refusal::Nacked);
    let mut refused = outbox.relay_with_full_scan(&broker, Duration::ZERO);
    assert_eq!(refused.step().await?, Step::NoneConfirmed);
    sqlx::query("update outbox set available_at = available_at + interval '50 minutes'")
        .execute(&outbox.pool)
        .await?;
    let second = outbox.append(order, 2).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_with_full_scan(&broker, Duration::ZERO);
    assert_eq!(relay.step().await?, Step::PublishedAll(2));
    assert_eq!(broker.seen(), [first, second]);
    Ok(())
}

#[tokio::test]
async fn event_waits_for_an_older_one_that_only_a_full_scan_finds() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    let broker = ScriptedBroker::that_refuses(first, Refusal::Nacked);
    let mut refused = outbox.relay_with_full_scan(&broker, Duration::ZERO);
    assert_eq!(refused.step().await?, Step::NoneConfirmed);

    // Another relay makes its first scan, a full one, while the event backs off. Then it publishes an event of the same
    // lane far above it.
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay_with_full_scan(&broker, NEVER);
    sqlx::query("update outbox set available_at = clock_timestamp() + interval '5 minutes'")
        .execute(&outbox.pool)
        .await?;
    assert_eq!(relay.step().await?, Step::Idle);
    outbox.skip_sequence_numbers(20_000).await?;
    outbox.append(aggregate_in_lane(lane(order)), 1).await?;
    assert_eq!(relay.step().await?, Step::PublishedAll(1));

    // The back-off ends, and the order has a second event. This relay scans the second one, and not the first.
    let second = outbox.append(order, 2).await?;
    outbox.end_back_off().await?;
    assert_eq!(relay.step().await?, Step::Idle, "the second event was published before the first");
    let mut full = outbox.relay_with_full_scan(&broker, Duration::ZERO);
    assert_eq!(full.step().await?, Step::PublishedAll(2));
    assert_eq!(broker.seen()[1..], [first, second]);
    Ok(())
}

#[tokio::test]
async fn counting_a_large_backlog_reads_the_index_and_not_the_events() -> anyhow::Result<()> {
    let outbox = outbox_without_autovacuum().await?;
    // All in one session: what another one has read before would be counted later.
    let pool = outbox.one_session().await?;
    insert_pending(&pool, 50_000, 500).await?;
    sqlx::query("vacuum analyze outbox").execute(&pool).await?;
    let pages = pages_to_count_the_backlog(&pool).await?;
    // The index has about two hundred pages, the table more than four thousand.
    assert!(pages <= 1_000, "{pages} pages were read");
    Ok(())
}

#[tokio::test]
async fn counting_reads_dead_entries_only_once_while_vacuum_is_held_back() -> anyhow::Result<()> {
    let outbox = outbox_without_autovacuum().await?;
    let long_transaction = hold_back_vacuum(&outbox).await?;
    let pool = outbox.one_session().await?;
    insert_pending(&pool, 20_000, 0).await?;
    sqlx::query("update outbox set published_at = now()").execute(&pool).await?;
    sqlx::query("vacuum analyze outbox").execute(&pool).await?;
    let (before, _) = pages_and_table_scans(&pool).await?;
    sqlx::query("select count(*) from outbox where published_at is null and parked_at is null")
        .execute(&pool)
        .await?;
    let (after, _) = pages_and_table_scans(&pool).await?;
    let one_scan = after - before;
    assert!(one_scan > 1_000, "{one_scan} pages: there were no dead entries, so this test proves nothing");
    let counting = pages_to_count_the_backlog(&pool).await?;
    assert!(counting < one_scan * 3 / 2, "counting read {counting} pages, one scan {one_scan}");
    long_transaction.close().await?;
    Ok(())
}

/// Inserts pending events with a text of so many characters, in all lanes.
async fn insert_pending(pool: &Pool, events: i32, characters: i32) -> anyhow::Result<()> {
    let sql = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
                                   schema_version, payload, lane)
               select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1,
                      json_build_object('text', repeat('x', $2)), number % 16
               from generate_series(1, $1) as number";
    sqlx::query(sql).bind(events).bind(characters).execute(pool).await?;
    Ok(())
}

/// How many pages of the outbox [`observe_backlog`] reads when it counts once. `pool` has one session.
async fn pages_to_count_the_backlog(pool: &Pool) -> anyhow::Result<i64> {
    let (before, _) = pages_and_table_scans(pool).await?;
    let stop = CancellationToken::new();
    let observing = tokio::spawn(observe_backlog(pool.clone(), stop.clone()));
    let pages = testbed::eventually("the backlog to be counted", Duration::from_secs(60), async || {
        let (pages, _) = pages_and_table_scans(pool).await?;
        Ok((pages > before).then_some(pages - before))
    });
    let pages = pages.await?;
    stop.cancel();
    observing.await?;
    Ok(pages)
}

#[tokio::test]
async fn replay_of_a_period_reads_few_pages_however_long_the_history_is() -> anyhow::Result<()> {
    let outbox = outbox_without_autovacuum().await?;
    let pool = &outbox.one_session().await?;
    // Two events a second for 42 hours, on each side of the period.
    let history = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                       payload, lane, created_at, published_at)
                   select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', number % 16, at, at
                   from generate_series(1, 600000) as number,
                        lateral (select now() + (number - 600000) * interval '0.5 s' as at) as time";
    sqlx::query(history).execute(pool).await?;
    // One of the first events was refused for long, and one waited behind it.
    let late = "update outbox set published_at = (select created_at from outbox where seq = 300010) where seq in (7, 8)";
    sqlx::query(late).execute(pool).await?;
    sqlx::query("vacuum analyze outbox").execute(pool).await?;
    let time = "select created_at from outbox where seq = $1";
    let from = sqlx::query_scalar(time).bind(300_001_i64).fetch_one(pool).await?;
    let to = sqlx::query_scalar(time).bind(302_501_i64).fetch_one(pool).await?;

    let (before, _) = pages_and_table_scans(pool).await?;
    let mut selection = Selection { from: Some(from), to: Some(to), dry_run: true, ..Selection::default() };
    let mut sizes = vec![];
    loop {
        let page = replay(pool, Replayed::Published, &selection, TWO_WEEKS).await?;
        assert!(page.items.iter().all(|item| item.outcome == ReplayOutcome::WouldBePending));
        sizes.push(page.items.len());
        let Some(next) = page.next else { break };
        selection.after = next;
    }
    assert_eq!(sizes, [1_000, 1_000, 502], "2,500 of the period, and the two that were published late");
    let read = pages_and_table_scans(pool).await?.0 - before;
    // 14,000, most of them to lock 2,500 events by their ids. Reading what came before adds 7,000, what came after 13,000.
    assert!(read < 17_000, "{read} pages were read");
    Ok(())
}

/// A sequence with a cache gives each session a range for itself: the later change of an aggregate may get the lower number.
#[tokio::test]
async fn versions_decide_the_order_within_an_aggregate_when_the_sequence_has_a_cache() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    sqlx::raw_sql("alter sequence outbox_seq_seq cache 50").execute(&outbox.pool).await?;
    let (mut one, mut other) = (outbox.pool.begin().await?, outbox.pool.begin().await?);
    for session in [&mut one, &mut other] {
        outbox::append(session, &[event(Uuid::now_v7(), 1)]).await?;
    }
    let order = Uuid::now_v7();
    let (created, cancelled) = (event(order, 1), event(order, 2));
    outbox::append(&mut other, std::slice::from_ref(&created)).await?;
    other.commit().await?;
    outbox::append(&mut one, std::slice::from_ref(&cancelled)).await?;
    one.commit().await?;
    let seqs: Vec<i64> =
        sqlx::query_scalar("select seq from outbox where aggregate_id = $1 order by aggregate_version")
            .bind(order)
            .fetch_all(&outbox.pool)
            .await?;
    assert!(seqs[0] > seqs[1], "{seqs:?}");
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    while broker.seen().len() < 4 {
        assert!(!matches!(relay.step().await?, Step::Idle), "{:?}", broker.seen());
    }
    let mut seen = broker.seen();
    seen.retain(|id| [created.event_id, cancelled.event_id].contains(id));
    assert_eq!(seen, [created.event_id, cancelled.event_id]);
    Ok(())
}

/// A clock that was ahead for a while has dated some events so. They must not hide the later ones of a period.
#[tokio::test]
async fn replay_of_a_period_finds_what_is_behind_events_that_are_dated_ahead() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    outbox.insert_published(40, "2 hours").await?;
    outbox.insert_published(1_000, "-1 days").await?;
    outbox.insert_published(40, "90 minutes").await?;
    let now = time::OffsetDateTime::now_utc();
    let selection = Selection {
        from: Some(now - time::Duration::hours(3)),
        to: Some(now - time::Duration::hours(1)),
        dry_run: true,
        ..Selection::default()
    };
    let page = replay(&outbox.pool, Replayed::Published, &selection, TWO_WEEKS).await?;
    assert_eq!((page.items.len(), page.next), (80, None));
    Ok(())
}
