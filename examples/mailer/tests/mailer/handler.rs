//! What the mailer does with each kind of event.

use events::{Body, Cause, Event, Line, Money, NewEvent, OrderCancelled, OrderCreated, TraceContext};
use mailer::MailHandler;
use messaging::{Applied, Handler as _, Incoming};
use uuid::Uuid;

use crate::support::{MailerDatabase, confirmed};

/// The event as a consumer decodes it.
fn decoded(event: &NewEvent) -> Event {
    let (id, body) = (event.event_id.to_string(), event.payload.as_bytes());
    Incoming { message_id: Some(&id), body, ..Incoming::default() }.decode().unwrap()
}

fn cancelled(order_id: Uuid, cause: Cause) -> NewEvent {
    let body = OrderCancelled { order_id, cause, detail: "a detail for people".into() };
    NewEvent::of(order_id, 3, &TraceContext::root(), &body).unwrap()
}

#[tokio::test]
async fn each_end_of_an_order_is_one_mail_and_a_confirmed_order_can_have_both() -> anyhow::Result<()> {
    let database = MailerDatabase::create().await?;
    let (one, other, both) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let events = [
        confirmed(one),
        cancelled(other, Cause::OutOfStock),
        confirmed(both),
        cancelled(both, Cause::Customer),
    ];
    let group = events.each_ref().map(decoded);
    let handler = MailHandler::new(database.pool.clone());
    assert_eq!(handler.apply(&group).await?, Applied { first: 4, duplicates: 0 });
    let mut expected = [(one, "confirmed"), (other, "cancelled"), (both, "confirmed"), (both, "cancelled")]
        .map(|(order, kind)| (order, kind.to_owned()));
    expected.sort();
    assert_eq!(database.mails().await?, expected);
    let text: String = sqlx::query_scalar("select body from mails where order_id = $1")
        .bind(other)
        .fetch_one(&database.pool)
        .await?;
    assert!(text.contains("out of stock"), "{text}");
    Ok(())
}

#[tokio::test]
async fn duplicate_writes_no_mail_even_after_its_record_was_erased() -> anyhow::Result<()> {
    let database = MailerDatabase::create().await?;
    let event = decoded(&confirmed(Uuid::now_v7()));
    let handler = MailHandler::new(database.pool.clone());
    let twice_in_one_group = [event.clone(), event.clone()];
    assert_eq!(handler.apply(&twice_in_one_group).await?, Applied { first: 1, duplicates: 1 });
    assert_eq!(handler.apply(std::slice::from_ref(&event)).await?, Applied { first: 0, duplicates: 1 });
    // What retention does after thirty days.
    sqlx::query("delete from processed_events").execute(&database.pool).await?;
    assert_eq!(handler.apply(&[event]).await?, Applied { first: 1, duplicates: 0 });
    assert_eq!(database.mails().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn event_of_another_type_is_recorded_and_writes_no_mail() -> anyhow::Result<()> {
    let database = MailerDatabase::create().await?;
    let order_id = Uuid::now_v7();
    let body = OrderCreated {
        order_id,
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 1, unit_price: 625 }],
        total: Money { amount: 625, currency: "EUR".into() },
    };
    let created = NewEvent::of(order_id, 1, &TraceContext::root(), &body)?;
    let event = decoded(&created);
    assert!(matches!(event.body, Body::OrderCreated(_)));
    let handler = MailHandler::new(database.pool.clone());
    assert_eq!(handler.apply(&[event]).await?, Applied { first: 1, duplicates: 0 });
    assert_eq!(database.mails().await?.len(), 0);
    Ok(())
}
