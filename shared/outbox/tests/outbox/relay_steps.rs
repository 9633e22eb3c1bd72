//! One step of the relay at a time, against a real PostgreSQL and every answer that a broker can give.

use std::time::Duration;

use crate::support::{Outbox, ScriptedBroker, event};
use events::{
    lane,
    transport::{Outcome, Refusal},
};
use outbox::{RETRY_SECONDS, Relay, RelayOptions, Step};
use uuid::Uuid;

#[tokio::test]
async fn what_was_committed_is_published_in_order_and_once() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let (first, second, third) =
        (outbox.append(order, 1).await?, outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Published(3));
    assert_eq!(relay.step().await?, Step::Idle);
    assert_eq!(broker.seen(), [first, second, third]);
    Ok(())
}

#[tokio::test]
async fn an_event_whose_transaction_was_rolled_back_never_existed() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut transaction = outbox.pool.begin().await?;
    outbox::append(&mut transaction, &[event(Uuid::now_v7(), 1)]).await?;
    let broker = ScriptedBroker::that_confirms();
    assert_eq!(outbox.relay(&broker).step().await?, Step::Idle, "not visible before the commit");
    transaction.rollback().await?;
    assert_eq!(outbox.relay(&broker).step().await?, Step::Idle, "and not afterwards");
    Ok(())
}

#[tokio::test]
async fn an_aggregate_cannot_have_two_events_with_one_version() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    outbox.append(order, 1).await?;
    assert!(outbox.append(order, 1).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_late_commit_is_not_skipped() -> anyhow::Result<()> {
    // The transaction that drew the lower `seq` commits last: a cursor over `seq` would have gone past it.
    let outbox = Outbox::new().await?;
    let late = event(Uuid::now_v7(), 1);
    let mut slow = outbox.pool.begin().await?;
    outbox::append(&mut slow, std::slice::from_ref(&late)).await?;
    let early = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Published(1));
    slow.commit().await?;
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(broker.seen(), [early, late.event_id]);
    Ok(())
}

#[tokio::test]
async fn a_broker_that_is_away_burns_nothing() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    broker.set_away(true);
    let mut relay = outbox.relay(&broker);
    for _ in 0..20 {
        assert_eq!(relay.step().await?, Step::BrokerAway);
    }
    assert_eq!(outbox.state(id).await?, (false, 0, false));
    broker.set_away(false);
    assert_eq!(relay.step().await?, Step::Published(1));
    Ok(())
}

#[tokio::test]
async fn an_unknown_outcome_is_published_again_with_the_same_id_and_burns_nothing() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let mut answers = vec![Outcome::Confirmed, Outcome::Unknown, Outcome::Unknown];
    let broker = ScriptedBroker::that(move |_| answers.pop().unwrap());
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Stuck);
    assert_eq!(relay.step().await?, Step::Stuck);
    assert_eq!(outbox.state(id).await?, (false, 0, false));
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(broker.seen(), [id, id, id]);
    Ok(())
}

#[tokio::test]
async fn a_refused_event_holds_back_its_own_aggregate_and_nothing_else() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let (bad, good) = (Uuid::now_v7(), Uuid::now_v7());
    let first = outbox.append(bad, 1).await?;
    let second = outbox.append(bad, 2).await?;
    let other = outbox.append(good, 1).await?;
    let broker = ScriptedBroker::that(move |message| {
        if message.id == first { Outcome::Refused(Refusal::Unroutable) } else { Outcome::Confirmed }
    });
    let mut relay = outbox.relay(&broker);
    assert_eq!(relay.step().await?, Step::Published(1));
    assert_eq!(outbox.state(first).await?, (false, 1, false));
    assert_eq!(outbox.state(second).await?, (false, 0, false), "it waits for the first");
    assert_eq!(outbox.state(other).await?, (true, 0, false));
    assert!(!broker.seen().contains(&second), "the second event was offered before the first was confirmed");
    Ok(())
}

#[tokio::test]
async fn at_the_end_of_the_schedule_an_event_is_parked_and_others_go_on() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let bad = Uuid::now_v7();
    let first = outbox.append(bad, 1).await?;
    let second = outbox.append(bad, 2).await?;
    let broker = ScriptedBroker::that(move |message| {
        if message.id == first { Outcome::Refused(Refusal::Nacked) } else { Outcome::Confirmed }
    });
    let mut relay = outbox.relay(&broker);
    let mut attempts = 0;
    while !outbox.state(first).await?.2 {
        // The waits between attempts are the database's: skip them.
        sqlx::query("update outbox set available_at = clock_timestamp()").execute(&outbox.pool).await?;
        assert_eq!(relay.step().await?, Step::Stuck);
        attempts += 1;
        assert!(attempts <= RETRY_SECONDS.len(), "it is tried for ever");
    }
    assert_eq!(attempts, RETRY_SECONDS.len());
    let (reason,): (String,) = sqlx::query_as("select last_error from outbox where event_id = $1")
        .bind(first)
        .fetch_one(&outbox.pool)
        .await?;
    assert_eq!(reason, Refusal::Nacked.to_string());
    assert_eq!(relay.step().await?, Step::Idle, "what waits behind a parked event is not due");
    assert_eq!(outbox.state(second).await?, (false, 0, false));
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(relay.step().await?, Step::Published(1));
    assert!(outbox.state(other).await?.0);
    Ok(())
}

#[tokio::test]
async fn two_relays_never_hold_one_aggregate() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    outbox.append(order, 1).await?;
    let slow = ScriptedBroker::that_confirms();
    let (hangs, go_on) = slow.hold();
    let mut first = outbox.relay(&slow);
    let publishing = tokio::spawn(async move { first.step().await });
    hangs.notified().await;

    // The first relay is publishing event 1. A second event of that order, and one of an order in another lane.
    outbox.append(order, 2).await?;
    let elsewhere =
        std::iter::repeat_with(Uuid::now_v7).find(|id| events::lane(*id) != events::lane(order)).unwrap();
    let other = outbox.append(elsewhere, 1).await?;
    let quick = ScriptedBroker::that_confirms();
    let mut second = outbox.relay(&quick);
    assert_eq!(second.step().await?, Step::Published(1), "the other lane is free");
    assert_eq!(quick.seen(), [other]);
    assert_eq!(second.step().await?, Step::Busy, "the order's lane is not");

    go_on.notify_one();
    assert_eq!(publishing.await??, Step::Published(1));
    assert_eq!(second.step().await?, Step::Published(1));
    Ok(())
}

#[tokio::test]
async fn a_relay_that_is_killed_between_confirm_and_mark_publishes_again_and_marks_once() -> anyhow::Result<()>
{
    let outbox = Outbox::new().await?;
    let id = outbox.append(Uuid::now_v7(), 1).await?;
    let broker = ScriptedBroker::that_confirms();
    let (hangs, go_on) = broker.hold();
    let mut killed = outbox.relay(&broker);
    let publishing = tokio::spawn(async move { killed.step().await });
    hangs.notified().await;
    // What PostgreSQL does to the session of a process that died, or that was frozen for too long.
    let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where state = 'idle in transaction' and datname = current_database()";
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&outbox.pool).await?, 1);

    // Its lanes are free at once: another relay publishes the event, and marks it.
    let (hangs_again, go_on_again) = broker.hold();
    let mut heir = outbox.relay(&broker);
    let inheriting = tokio::spawn(async move { heir.step().await });
    tokio::time::timeout(Duration::from_secs(5), hangs_again.notified()).await?;
    // The first one gets its confirm, and is too late: its mark dies with its session.
    go_on.notify_one();
    assert!(publishing.await?.is_err(), "a mark without a lock was accepted");
    assert_eq!(outbox.state(id).await?, (false, 0, false));
    go_on_again.notify_one();
    assert_eq!(inheriting.await??, Step::Published(1));
    assert_eq!(broker.seen(), [id, id], "published twice, with one id");
    Ok(())
}

#[tokio::test]
async fn an_event_whose_back_off_ends_in_the_middle_of_a_look_is_not_overtaken() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let neighbour = (0..).map(|_| Uuid::now_v7()).find(|other| lane(*other) == lane(order)).unwrap();
    let due = outbox.append(neighbour, 1).await?;
    let first = outbox.append(order, 1).await?;
    // What makes the look from the first event to the second one long: others that back off.
    let sql = "insert into outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version,
                                   payload, lane, attempts, available_at)
               select gen_random_uuid(), 'order', gen_random_uuid(), 1, 'OrderCreated', 1, '{}', $1, 1,
                      now() + interval '1 day'
               from generate_series(1, 60000)";
    sqlx::query(sql).bind(lane(order)).execute(&outbox.pool).await?;
    let second = outbox.append(order, 2).await?;
    sqlx::query("vacuum analyze outbox").execute(&outbox.pool).await?;

    let broker = ScriptedBroker::that_confirms();
    let options = RelayOptions { lanes: 16, full_look: Duration::ZERO, ..RelayOptions::default() };
    let mut relay = Relay::new(outbox.pool.clone(), broker.clone(), options);
    for tries in 0..50 {
        let ids = [due, first, second];
        let sql = "update outbox set published_at = null where event_id = any($1)";
        sqlx::query(sql).bind(ids).execute(&outbox.pool).await?;
        let sql = "update outbox set attempts = 1,
                       available_at = clock_timestamp() + $2 * interval '3 milliseconds' where event_id = $1";
        sqlx::query(sql).bind(first).bind(tries).execute(&outbox.pool).await?;
        let before = broker.seen().len();
        let step = relay.step().await?;
        let seen = broker.seen().split_off(before);
        assert!(seen == [due] || seen == ids, "{tries}: {step:?}, {seen:?} of {ids:?}");
    }
    Ok(())
}
