use std::time::Duration;

use events::transport::{Outcome as Answer, Refusal};
use outbox::{
    RETRY_SECONDS, Step,
    operator::{Discard, Outcome, Rules, Which, discard, list_parked, replay_parked, replay_published, show},
};
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::{Outbox, ScriptedBroker};

const TWO_WEEKS: Rules = Rules { within: Duration::from_secs(14 * 86_400), force: false };

fn these(ids: &[Uuid]) -> Which {
    Which { ids: Some(ids.to_vec()), ..Which::default() }
}

/// Lets `bad` be refused until it is parked.
async fn park(outbox: &Outbox, bad: Uuid) -> anyhow::Result<()> {
    let broker = ScriptedBroker::that(move |message| {
        if message.id == bad { Answer::Refused(Refusal::Unroutable) } else { Answer::Confirmed }
    });
    let mut relay = outbox.relay(&broker);
    while !outbox.state(bad).await?.2 {
        relay.step().await?;
        sqlx::query("update outbox set available_at = clock_timestamp()").execute(&outbox.pool).await?;
    }
    Ok(())
}

async fn publish_all(outbox: &Outbox) -> anyhow::Result<Vec<Uuid>> {
    let broker = ScriptedBroker::that_confirms();
    let mut relay = outbox.relay(&broker);
    while !matches!(relay.step().await?, Step::Idle) {}
    Ok(broker.seen())
}

async fn make_old(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query("update outbox set created_at = created_at - interval '15 days'").execute(pool).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_parked_is_listed_with_its_reason_and_after_a_replay_its_followers_go_out_in_order()
-> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    park(&outbox, first).await?;
    let (second, third) = (outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let other = outbox.append(Uuid::now_v7(), 1).await?;
    assert_eq!(publish_all(&outbox).await?, [other], "its followers wait, the others go on");

    let page = list_parked(&outbox.pool, 0, 10).await?;
    assert_eq!((page.items.len(), page.next), (1, None));
    let parked = &page.items[0];
    assert_eq!((parked.event_id, usize::try_from(parked.attempts)?), (first, RETRY_SECONDS.len()));
    assert_eq!(parked.last_error.as_deref(), Some("no queue is bound for it"));
    let shown = show(&outbox.pool, first).await?.unwrap();
    assert_eq!(shown.waiting_behind, 2);
    assert!(shown.payload.get().contains(&first.to_string()));

    let again = replay_parked(&outbox.pool, &these(&[first, second]), TWO_WEEKS).await?.items;
    assert_eq!(
        again.iter().map(|again| again.outcome).collect::<Vec<_>>(),
        [Outcome::Owed, Outcome::NotThere]
    );
    assert_eq!(publish_all(&outbox).await?, [first, second, third]);
    assert!(list_parked(&outbox.pool, 0, 10).await?.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_discard_lets_the_aggregate_go_on_and_names_the_gap() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let order = Uuid::now_v7();
    let first = outbox.append(order, 1).await?;
    park(&outbox, first).await?;
    let (second, third) = (outbox.append(order, 2).await?, outbox.append(order, 3).await?);
    let done = discard(&outbox.pool, first, "its product was never ours").await?;
    assert_eq!(done, Discard::Discarded { aggregate_id: order, gap: 1, follow: vec![2, 3] });
    assert_eq!(publish_all(&outbox).await?, [second, third]);
    // Moved and not erased.
    let kept: (String, i32, String) = sqlx::query_as(
        "select note, aggregate_version, payload::text from outbox_discarded where event_id = $1",
    )
    .bind(first)
    .fetch_one(&outbox.pool)
    .await?;
    assert_eq!((kept.0.as_str(), kept.1), ("its product was never ours", 1));
    assert!(kept.2.contains(&first.to_string()));

    assert_eq!(discard(&outbox.pool, first, "again").await?, Discard::NotParked);
    assert_eq!(discard(&outbox.pool, second, "published").await?, Discard::NotParked);
    Ok(())
}

#[tokio::test]
async fn published_events_are_published_again_under_the_same_id_by_id_or_by_time() -> anyhow::Result<()> {
    let outbox = Outbox::new().await?;
    let mut ids = vec![];
    for _ in 0..3 {
        ids.push(outbox.append(Uuid::now_v7(), 1).await?);
    }
    let began = OffsetDateTime::now_utc() - Duration::from_secs(60);
    publish_all(&outbox).await?;
    replay_published(&outbox.pool, &these(&ids[..1]), TWO_WEEKS).await?;
    assert_eq!(publish_all(&outbox).await?, ids[..1]);

    let before = Which { to: Some(began), ..Which::default() };
    assert!(replay_published(&outbox.pool, &before, TWO_WEEKS).await?.items.is_empty());
    let since = Which { from: Some(began), ..Which::default() };
    assert_eq!(replay_published(&outbox.pool, &since, TWO_WEEKS).await?.items.len(), 3);
    assert_eq!(publish_all(&outbox).await?, ids);
    // What is still owed is nobody's to replay.
    let owed = outbox.append(Uuid::now_v7(), 1).await?;
    let page = replay_published(&outbox.pool, &these(&[owed]), TWO_WEEKS).await?;
    assert_eq!(page.items[0].outcome, Outcome::NotThere);
    Ok(())
}

#[tokio::test]
async fn what_is_older_than_the_consumers_memory_is_refused_until_the_operator_insists() -> anyhow::Result<()>
{
    let outbox = Outbox::new().await?;
    let (published, parked) =
        (outbox.append(Uuid::now_v7(), 1).await?, outbox.append(Uuid::now_v7(), 1).await?);
    park(&outbox, parked).await?;
    make_old(&outbox.pool).await?;
    let force = Rules { force: true, ..TWO_WEEKS };

    let refused = replay_published(&outbox.pool, &these(&[published]), TWO_WEEKS).await?.items;
    assert_eq!(refused[0].outcome, Outcome::TooOld);
    let refused = replay_parked(&outbox.pool, &these(&[parked]), TWO_WEEKS).await?.items;
    assert_eq!(refused[0].outcome, Outcome::TooOld);
    assert_eq!(publish_all(&outbox).await?, Vec::<Uuid>::new());

    replay_published(&outbox.pool, &these(&[published]), force).await?;
    replay_parked(&outbox.pool, &these(&[parked]), force).await?;
    assert_eq!(publish_all(&outbox).await?.len(), 2);
    Ok(())
}
