//! What an operator does with dead letters: list, show, replay with the service's handler, discard.

use std::sync::{Arc, Mutex};

use database::Pool;
use events::Event;
use inbox::dead_letters::{self, Discard, ReplayOutcome, discard, list, replay, show};
use messaging::{
    Applied, DeadLetter, DeadLetterStore as _, Failure, Handler, SharedHandler,
    replay::{ReplayPolicy, Selection},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    BILLING, TWO_WEEKS, TestInbox, envelope, event, letter, waits_for_the_lock, write_effects,
};

impl TestInbox {
    /// Saves a dead letter. Returns its id.
    async fn save(&self, letter: &DeadLetter) -> anyhow::Result<i64> {
        self.table.save(letter).await?;
        Ok(sqlx::query_scalar("select max(id) from dead_letters").fetch_one(&self.pool).await?)
    }

    async fn effects(&self) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from effects").fetch_one(&self.pool).await?)
    }

    async fn unresolved(&self) -> anyhow::Result<Vec<dead_letters::DeadLetter>> {
        Ok(list(&self.pool, 0, 10, false).await?.items)
    }

    /// Replays one dead letter.
    async fn replay(
        &self,
        handler: &OrderHandler,
        id: i64,
        policy: ReplayPolicy,
    ) -> anyhow::Result<ReplayOutcome> {
        let handler = SharedHandler::new(handler.clone());
        let selection = Selection { ids: Some(vec![id]), ..Selection::default() };
        let page = replay(&self.table, &handler, &selection, policy).await?;
        assert_eq!((page.items.len(), page.next), (1, None), "{page:?}");
        Ok(page.items[0].outcome.clone())
    }
}

type Defect = fn() -> Failure;

/// A service's handler, with a defect that a test can set and remove.
#[derive(Clone)]
struct OrderHandler {
    pool: Pool,
    defect: Arc<Mutex<Option<Defect>>>,
}

impl OrderHandler {
    fn new(inbox: &TestInbox) -> Self {
        Self { pool: inbox.pool.clone(), defect: Arc::default() }
    }

    fn set_defect(&self, defect: Option<Defect>) {
        *self.defect.lock().unwrap() = defect;
    }
}

impl Handler for OrderHandler {
    async fn apply(&self, group: &[Event]) -> Result<Applied, Failure> {
        // Copied first: a defect that panics would poison the lock.
        let defect = *self.defect.lock().unwrap();
        if let Some(defect) = defect {
            return Err(defect());
        }
        let (applied, ()) = BILLING.apply_once(&self.pool, group, write_effects).await?;
        Ok(applied)
    }
}

/// A dead letter with these bytes, as the broker makes one.
fn letter_with(message_id: &str, body: &[u8]) -> DeadLetter {
    DeadLetter {
        arrival: Some(Uuid::now_v7().to_string()),
        message_id: Some(message_id.into()),
        body: body.to_vec(),
        headers: json!({ "odd": "a\u{0}b" }),
        ..letter(&event(), "unknown-schema")
    }
}

fn letter_of(envelope: &Value) -> DeadLetter {
    letter_with(envelope["id"].as_str().unwrap(), envelope.to_string().as_bytes())
}

#[tokio::test]
async fn undecodable_dead_letter_is_shown_with_its_bytes_and_can_only_be_discarded() -> anyhow::Result<()> {
    let inbox = TestInbox::with_effects().await?;
    let pool = &inbox.pool;
    let mut poison = letter_with("odd\u{0}id", b"\xff\x00 not json");
    poison.reason = "malformed".into();
    let id = inbox.save(&poison).await?;
    let page = list(pool, 0, 10, false).await?;
    assert_eq!((page.items.len(), page.items[0].id, page.items[0].reason.as_str()), (1, id, "malformed"));
    let shown = show(pool, id).await?.unwrap();
    let shown = serde_json::to_string(&shown)?;
    assert!(
        shown.contains(r#""bodyHex":"ff00206e6f74206a736f6e""#) && !shown.contains(r#""body":"#),
        "{shown}"
    );
    assert!(shown.contains(r"a\u0000b"), "{shown}");
    let listed = serde_json::to_string(&page)?;
    assert!(!listed.contains("headers") && !listed.contains("body"), "{listed}");

    let handler = OrderHandler::new(&inbox);
    let outcome = inbox.replay(&handler, id, TWO_WEEKS).await?;
    let ReplayOutcome::StillFails { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, "malformed");
    assert_eq!(inbox.unresolved().await?.len(), 1, "it still waits");

    let done = discard(&inbox.table, &[id, 999], "sent by a test of another team").await?;
    assert_eq!(done, Discard { discarded: vec![id], untouched: vec![999] });
    assert!(inbox.unresolved().await?.is_empty());
    let all = list(pool, 0, 10, true).await?.items;
    assert_eq!(all[0].note.as_deref(), Some("sent by a test of another team"));
    assert_eq!(inbox.replay(&handler, id, TWO_WEEKS).await?, ReplayOutcome::Discarded);
    assert_eq!(inbox.replay(&handler, 999, TWO_WEEKS).await?, ReplayOutcome::NotFound);
    assert_eq!(discard(&inbox.table, &[id], "again").await?.discarded, Vec::<i64>::new());
    Ok(())
}

#[tokio::test]
async fn replay_applies_the_event_once_after_the_defect_is_fixed() -> anyhow::Result<()> {
    let inbox = TestInbox::with_effects().await?;
    let envelope = envelope(Uuid::now_v7());
    let id = inbox.save(&letter_of(&envelope)).await?;
    let event_id: Uuid = envelope["id"].as_str().unwrap().parse()?;
    assert_eq!(inbox.unresolved().await?[0].event_id, Some(event_id));

    let handler = OrderHandler::new(&inbox);
    let defects: [fn() -> Failure; 3] = [
        || Failure::Permanent("there is no such product".into()),
        || Failure::Unexpected("set by the test".into()),
        || panic!("set by the test"),
    ];
    for (defect, expected) in defects.into_iter().zip(["permanent", "unexpected", "unexpected"]) {
        handler.set_defect(Some(defect));
        let outcome = inbox.replay(&handler, id, TWO_WEEKS).await?;
        let ReplayOutcome::StillFails { reason, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, expected);
    }
    assert_eq!((inbox.effects().await?, inbox.unresolved().await?.len()), (0, 1));

    handler.set_defect(None);
    assert_eq!(inbox.replay(&handler, id, TWO_WEEKS).await?, ReplayOutcome::Applied);
    assert_eq!(inbox.replay(&handler, id, TWO_WEEKS).await?, ReplayOutcome::Unchanged);
    assert_eq!((inbox.effects().await?, inbox.unresolved().await?.len()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn replay_refuses_old_dead_letters_unless_it_is_forced() -> anyhow::Result<()> {
    let inbox = TestInbox::with_effects().await?;
    let mut envelope = envelope(Uuid::now_v7());
    envelope["time"] = json!("2020-01-01T00:00:00Z");
    let (id, handler) = (inbox.save(&letter_of(&envelope)).await?, OrderHandler::new(&inbox));
    let outcome = inbox.replay(&handler, id, TWO_WEEKS).await?;
    let ReplayOutcome::TooOld { detail } = outcome else { panic!("{outcome:?}") };
    assert!(detail.contains("14 days") && detail.contains("force"), "{detail}");
    assert_eq!(inbox.effects().await?, 0);
    let force = ReplayPolicy { force: true, ..TWO_WEEKS };
    assert_eq!(inbox.replay(&handler, id, force).await?, ReplayOutcome::Applied);
    Ok(())
}

#[tokio::test]
async fn replay_of_all_goes_page_by_page_and_skips_resolved_dead_letters() -> anyhow::Result<()> {
    let inbox = TestInbox::with_effects().await?;
    let handler = SharedHandler::new(OrderHandler::new(&inbox));
    let mut last = 0;
    for _ in 0..70 {
        last = inbox.save(&letter_of(&envelope(Uuid::now_v7()))).await?;
    }
    discard(&inbox.table, &[last], "discarded by the test").await?;
    let (mut next, mut applied) = (Some(0), 0);
    while let Some(after) = next {
        let selection = Selection { all: true, after, ..Selection::default() };
        let page = replay(&inbox.table, &handler, &selection, TWO_WEEKS).await?;
        applied += page.items.iter().filter(|item| item.outcome == ReplayOutcome::Applied).count();
        next = page.next;
    }
    assert_eq!((applied, inbox.effects().await?), (69, 69));
    Ok(())
}

#[tokio::test]
async fn letter_that_is_discarded_during_a_replay_is_not_applied() -> anyhow::Result<()> {
    let inbox = TestInbox::with_effects().await?;
    let first = inbox.save(&letter_of(&envelope(Uuid::now_v7()))).await?;
    let second = inbox.save(&letter_of(&envelope(Uuid::now_v7()))).await?;
    let (pool, table) = (inbox.pool.clone(), inbox.table.clone());
    let handler = SharedHandler::new(OrderHandler::new(&inbox));
    // The replay of the first one waits for this transaction, then the discarding of the second one does.
    let turn = BILLING.begin(&pool).await?;
    let replaying = tokio::spawn({
        let table = table.clone();
        let selection = Selection { all: true, ..Selection::default() };
        async move { replay(&table, &handler, &selection, TWO_WEEKS).await }
    });
    waits_for_the_lock(&pool, 1).await?;
    let discarding = tokio::spawn(async move { discard(&table, &[second], "discarded by the test").await });
    waits_for_the_lock(&pool, 2).await?;
    turn.rollback().await?;
    assert_eq!(discarding.await??.discarded, [second]);
    let items = replaying.await??.items;
    let outcomes: Vec<_> = items.iter().map(|item| (item.id, &item.outcome)).collect();
    assert_eq!(outcomes, [(first, &ReplayOutcome::Applied), (second, &ReplayOutcome::Discarded)]);
    assert_eq!(inbox.effects().await?, 1);
    Ok(())
}
