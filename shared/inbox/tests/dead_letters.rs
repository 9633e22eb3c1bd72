//! What could not be applied lies in a table, once; and an operator can have it applied, once, or give it up.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use events::{
    Draft, Event, Line, Money, OrderCreated, TraceContext,
    transport::{Applied, DeadLetter, Failure, Handler, Shelf},
};
use inbox::{
    DeadLetters,
    operator::{Discard, Outcome, Rules, Which, discard, list, replay, show},
};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::TestDatabase;
use uuid::Uuid;

const TWO_WEEKS: Rules = Rules { within: Duration::from_secs(14 * 86_400), force: false };

struct Desk {
    pool: PgPool,
    letters: DeadLetters,
    _database: TestDatabase,
}

impl Desk {
    async fn new() -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = PgPool::connect(&database.url("billing")).await?;
        inbox::MIGRATIONS.run(&pool).await?;
        sqlx::query("create table effects (event_id uuid not null)").execute(&pool).await?;
        Ok(Self { letters: DeadLetters::new(pool.clone()), pool, _database: database })
    }

    /// Keeps a letter and returns its id.
    async fn keep(&self, letter: &DeadLetter) -> anyhow::Result<i64> {
        self.letters.keep(letter).await?;
        Ok(sqlx::query_scalar("select max(id) from dead_letters").fetch_one(&self.pool).await?)
    }

    async fn rows(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from dead_letters").fetch_one(&self.pool).await?)
    }

    async fn effects(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from effects").fetch_one(&self.pool).await?)
    }

    async fn replay(&self, handler: &Arc<Applies>, id: i64, rules: Rules) -> anyhow::Result<Outcome> {
        let page = replay(&self.pool, handler, &these([id]), rules).await?;
        assert_eq!((page.items.len(), page.next), (1, None), "{page:?}");
        Ok(page.items[0].outcome.clone())
    }
}

fn these<const N: usize>(ids: [i64; N]) -> Which {
    Which { ids: Some(ids.to_vec()), ..Which::default() }
}

/// What a service does, with a defect that can be mended.
#[derive(Default)]
struct Applies {
    pool: Mutex<Option<PgPool>>,
    defect: Mutex<Option<fn() -> Failure>>,
}

impl Applies {
    fn into(desk: &Desk) -> Arc<Self> {
        Arc::new(Self { pool: Mutex::new(Some(desk.pool.clone())), ..Self::default() })
    }

    fn breaks(&self, defect: Option<fn() -> Failure>) {
        *self.defect.lock().unwrap() = defect;
    }
}

impl Handler for Applies {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        // Copied out first: a defect that panics must not take the lock along.
        let defect = *self.defect.lock().unwrap();
        if let Some(defect) = defect {
            return Err(defect());
        }
        let pool = self.pool.lock().unwrap().clone().unwrap();
        let mut transaction = pool.begin().await.map_err(inbox::failure)?;
        let first = inbox::first_time(&mut transaction, "billing", group).await?;
        for event in &first {
            let insert = sqlx::query("insert into effects values ($1)").bind(event.id);
            insert.execute(&mut *transaction).await.map_err(inbox::failure)?;
        }
        transaction.commit().await.map_err(inbox::failure)?;
        Ok(inbox::applied(group, &first))
    }
}

fn letter(message_id: &str, body: &[u8]) -> DeadLetter {
    DeadLetter {
        queue: "billing.events",
        arrival: Some(Uuid::now_v7().to_string()),
        message_id: Some(message_id.into()),
        reason: "unknown-schema".into(),
        detail: "unknown schema".into(),
        headers: json!({ "reason": "unknown-schema", "odd": "a\u{0}b" }),
        routing_key: "order.created".into(),
        body: body.to_vec(),
    }
}

/// An event of the kind that this consumer reads, as it travels.
fn event() -> (Uuid, Value) {
    let order = OrderCreated {
        order_id: Uuid::now_v7(),
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
        total: Money { amount: 625, currency: "EUR".into() },
    };
    let aggregate = ("order", order.order_id, 1);
    let draft = Draft::of("/orders", aggregate, &TraceContext::root(), &order).unwrap();
    (draft.event_id, serde_json::from_str(&draft.payload).unwrap())
}

fn letter_with(event: &Value) -> DeadLetter {
    letter(event["id"].as_str().unwrap(), event.to_string().as_bytes())
}

#[tokio::test]
async fn a_letter_that_is_handed_over_again_is_one_row_also_after_it_was_settled() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let poison = letter("poison", b"\xff\x00 not json");
    for _ in 0..3 {
        desk.letters.keep(&poison).await?;
    }
    // The consumer died between setting it aside and acknowledging it: another letter, the same message.
    let twice = DeadLetter { arrival: Some(Uuid::now_v7().to_string()), ..poison.clone() };
    let id = desk.keep(&twice).await?;
    assert_eq!(desk.rows().await?, 1);

    discard(&desk.pool, &[id], "not ours").await?;
    desk.letters.keep(&poison).await?;
    assert_eq!(desk.rows().await?, 1, "the letter that was settled came again");
    // The same message, set aside anew after that, is a new thing to decide.
    let later = DeadLetter { arrival: Some(Uuid::now_v7().to_string()), ..poison.clone() };
    desk.letters.keep(&later).await?;
    assert_eq!(desk.rows().await?, 2);
    // Other bytes under the same id are another message.
    desk.letters.keep(&DeadLetter { body: b"other".to_vec(), ..letter("poison", b"") }).await?;
    assert_eq!(desk.rows().await?, 3);
    Ok(())
}

#[tokio::test]
async fn a_poison_message_is_listed_with_its_reason_and_bytes_and_can_only_be_discarded() -> anyhow::Result<()>
{
    let desk = Desk::new().await?;
    let mut poison = letter("odd\u{0}id", b"\xff\x00 not json");
    poison.reason = "malformed".into();
    let id = desk.keep(&poison).await?;
    let page = list(&desk.pool, 0, 10, false).await?;
    assert_eq!((page.items.len(), page.items[0].id, page.items[0].reason.as_str()), (1, id, "malformed"));
    let shown = show(&desk.pool, id).await?.unwrap();
    assert_eq!((shown.body, shown.body_hex.as_deref()), (None, Some("ff00206e6f74206a736f6e")));
    assert!(shown.headers.get().contains(r"a\u0000b"), "{}", shown.headers);

    let handler = Applies::into(&desk);
    let outcome = desk.replay(&handler, id, TWO_WEEKS).await?;
    let Outcome::StillFails { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, "malformed");
    assert_eq!(list(&desk.pool, 0, 10, false).await?.items.len(), 1, "it still waits");

    let done = discard(&desk.pool, &[id, 999], "sent by a test of another team").await?;
    assert_eq!(done, Discard { discarded: vec![id], untouched: vec![999] });
    assert_eq!(list(&desk.pool, 0, 10, false).await?.items, []);
    let all = list(&desk.pool, 0, 10, true).await?.items;
    assert_eq!(all[0].note.as_deref(), Some("sent by a test of another team"));
    assert_eq!(desk.replay(&handler, id, TWO_WEEKS).await?, Outcome::Discarded);
    assert_eq!(desk.replay(&handler, 999, TWO_WEEKS).await?, Outcome::NoSuchLetter);
    assert_eq!(discard(&desk.pool, &[id], "again").await?.discarded, Vec::<i64>::new());
    Ok(())
}

#[tokio::test]
async fn once_the_defect_is_mended_a_replay_applies_and_a_second_one_changes_nothing() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let (event_id, event) = event();
    let id = desk.keep(&letter_with(&event)).await?;
    assert_eq!(list(&desk.pool, 0, 10, false).await?.items[0].event_id, Some(event_id));

    let handler = Applies::into(&desk);
    let defects: [fn() -> Failure; 3] = [
        || Failure::Permanent("no such product".into()),
        || Failure::Unexpected("odd".into()),
        || panic!("on purpose"),
    ];
    for (defect, expected) in defects.into_iter().zip(["permanent", "unexpected", "unexpected"]) {
        handler.breaks(Some(defect));
        let outcome = desk.replay(&handler, id, TWO_WEEKS).await?;
        let Outcome::StillFails { reason, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, expected);
    }
    assert_eq!((desk.effects().await?, list(&desk.pool, 0, 10, false).await?.items.len()), (0, 1));

    handler.breaks(None);
    assert_eq!(desk.replay(&handler, id, TWO_WEEKS).await?, Outcome::Applied);
    assert_eq!(desk.replay(&handler, id, TWO_WEEKS).await?, Outcome::Unchanged);
    assert_eq!((desk.effects().await?, list(&desk.pool, 0, 10, false).await?.items.len()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn an_event_that_was_applied_before_it_was_set_aside_is_recognised() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let (_, event) = event();
    let (one, handler) = (letter_with(&event), Applies::into(&desk));
    let id = desk.keep(&one).await?;
    assert_eq!(desk.replay(&handler, id, TWO_WEEKS).await?, Outcome::Applied);
    // A second copy, set aside later.
    let id = desk.keep(&DeadLetter { arrival: None, ..one }).await?;
    assert_eq!(desk.replay(&handler, id, TWO_WEEKS).await?, Outcome::Unchanged);
    assert_eq!(desk.effects().await?, 1);
    Ok(())
}

#[tokio::test]
async fn what_is_older_than_the_memory_is_refused_until_the_operator_insists() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let (_, mut event) = event();
    event["time"] = json!("2020-01-01T00:00:00Z");
    let (id, handler) = (desk.keep(&letter_with(&event)).await?, Applies::into(&desk));
    let outcome = desk.replay(&handler, id, TWO_WEEKS).await?;
    let Outcome::TooOld { detail } = outcome else { panic!("{outcome:?}") };
    assert!(detail.contains("14 days") && detail.contains("force"), "{detail}");
    assert_eq!(desk.effects().await?, 0);
    assert_eq!(desk.replay(&handler, id, Rules { force: true, ..TWO_WEEKS }).await?, Outcome::Applied);
    Ok(())
}

#[tokio::test]
async fn a_period_is_replayed_page_by_page_and_leaves_what_was_settled_alone() -> anyhow::Result<()> {
    let desk = Desk::new().await?;
    let handler = Applies::into(&desk);
    let mut last = 0;
    for _ in 0..70 {
        last = desk.keep(&letter_with(&event().1)).await?;
    }
    discard(&desk.pool, &[last], "given up").await?;
    let (mut after, mut applied) = (Some(0), 0);
    while let Some(from) = after {
        let page =
            replay(&desk.pool, &handler, &Which { after: from, ..Which::default() }, TWO_WEEKS).await?;
        applied += page.items.iter().filter(|again| again.outcome == Outcome::Applied).count();
        after = page.next;
    }
    assert_eq!((applied, desk.effects().await?), (69, 69));
    Ok(())
}
