//! What the mailer does about each kind of event.

use events::{
    Body, Cause, Data as _, Draft, Event, Line, Money, OrderCancelled, OrderConfirmed, OrderCreated,
    TraceContext,
    transport::{Applied, Handler as _, Incoming},
};
use mailer::{QUEUE, WriteMails};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    process::Mailer,
    room::{PATIENCE, Room, confirmed, publish},
};

/// As it would arrive.
fn event(draft: &Draft) -> Event {
    let (message_id, body) = (Some(draft.event_id.to_string()), draft.payload.clone().into_bytes());
    events::decode(&Incoming { message_id, traceparent: None, body }).unwrap()
}

fn cancelled(order_id: Uuid, cause: Cause) -> Draft {
    let body = OrderCancelled { order_id, cause, detail: "a detail for people".into() };
    Draft::of("/orders", ("order", order_id, 3), &TraceContext::root(), &body).unwrap()
}

#[tokio::test]
async fn each_end_of_an_order_is_one_mail_and_a_confirmed_order_can_have_both() -> anyhow::Result<()> {
    let room = Room::new().await?;
    let (kept, off, both) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let drafts = [
        confirmed(kept),
        cancelled(off, Cause::OutOfStock),
        confirmed(both),
        cancelled(both, Cause::Customer),
    ];
    let group = drafts.each_ref().map(event);
    let handler = WriteMails::new(room.pool.clone());
    assert_eq!(handler.apply(&group).await?, Applied { first: 4, duplicates: 0 });
    let mut expected = [(kept, "confirmed"), (off, "cancelled"), (both, "confirmed"), (both, "cancelled")]
        .map(|(order, kind)| (order, kind.to_owned()));
    expected.sort();
    assert_eq!(room.mails().await?, expected);
    let says: String = sqlx::query_scalar("select body from mails where order_id = $1")
        .bind(off)
        .fetch_one(&room.pool)
        .await?;
    assert!(says.contains("too little"), "{says}");
    Ok(())
}

#[tokio::test]
async fn a_copy_writes_nothing_and_neither_does_one_that_comes_after_everything_was_forgotten()
-> anyhow::Result<()> {
    let room = Room::new().await?;
    let event = event(&confirmed(Uuid::now_v7()));
    let handler = WriteMails::new(room.pool.clone());
    let twice_in_one_group = [event.clone(), event.clone()];
    assert_eq!(handler.apply(&twice_in_one_group).await?, Applied { first: 1, duplicates: 1 });
    assert_eq!(handler.apply(std::slice::from_ref(&event)).await?, Applied { first: 0, duplicates: 1 });
    // What retention does after thirty days.
    sqlx::query("delete from processed_events").execute(&room.pool).await?;
    assert_eq!(handler.apply(&[event]).await?, Applied { first: 1, duplicates: 0 });
    assert_eq!(room.mails().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn an_event_that_it_has_no_use_for_is_recorded_and_let_pass() -> anyhow::Result<()> {
    let room = Room::new().await?;
    let order_id = Uuid::now_v7();
    let body = OrderCreated {
        order_id,
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
        total: Money { amount: 625, currency: "EUR".into() },
    };
    let created = Draft::of("/orders", ("order", order_id, 1), &TraceContext::root(), &body)?;
    let event = event(&created);
    assert!(matches!(event.body, Body::OrderCreated(_)));
    let handler = WriteMails::new(room.pool.clone());
    assert_eq!(handler.apply(&[event]).await?, Applied { first: 1, duplicates: 0 });
    assert_eq!(room.mails().await?.len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_version_that_it_cannot_read_is_set_aside_and_the_next_event_goes_on() -> anyhow::Result<()> {
    let (room, vhost) = (Room::new().await?, testbed::vhost().await?);
    let mailer = Mailer::start(&room, &vhost.url()).await?;
    let (newer, next) = (Uuid::now_v7(), Uuid::now_v7());
    let kind = (OrderConfirmed::TYPE, 99);
    let body = OrderConfirmed { order_id: newer };
    let from_tomorrow = Draft::new("/orders", ("order", newer, 2), kind, &TraceContext::root(), &body)?;
    publish(&vhost.url(), &[from_tomorrow.clone(), confirmed(next)]).await?;
    room.has(&[(next, "confirmed".into())]).await?;
    let letters = eventually("the letter to lie in the table", PATIENCE, async || {
        let letters = mailer.dead_letters().await?;
        Ok((!letters.is_empty()).then_some(letters))
    })
    .await?;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!((&letters[0]["reason"], &letters[0]["queue"]), (&"unknown-schema".into(), &QUEUE.name.into()));
    assert_eq!(letters[0]["eventId"], from_tomorrow.event_id.to_string());
    Ok(())
}
