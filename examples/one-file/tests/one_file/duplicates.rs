//! Messages that are delivered twice, and messages that can never be applied.

use lapin::{Connection, ConnectionProperties, options::QueueDeclareOptions, types::FieldTable};
use testbed::eventually;
use uuid::Uuid;

use crate::program::{DEADLINE, Program};

#[tokio::test]
async fn event_that_is_published_twice_has_one_effect() -> anyhow::Result<()> {
    let (database, vhost) = (testbed::database().await?, testbed::vhost().await?);
    let program = Program::start("twice", &database.admin_url(), &vhost.url())?;
    for _ in 0..3 {
        program.first_order().await?;
    }
    program.settle().await?;
    // As after a crash between the broker's confirm and the mark.
    program.execute("update one_file.outbox set published_at = null").await?;
    program.settle().await?;
    program.drain().await?;
    let attempts: Vec<i16> = program.read("select attempts from one_file.outbox order by seq").await?;
    assert_eq!(attempts, [2, 2, 2, 1]);
    assert_eq!(program.doubled().await?, Vec::<Uuid>::new());
    Ok(())
}

#[tokio::test]
async fn message_that_cannot_be_applied_is_a_dead_letter_and_blocks_nothing() -> anyhow::Result<()> {
    let (database, vhost) = (testbed::database().await?, testbed::vhost().await?);
    let program = Program::start("poison", &database.admin_url(), &vhost.url())?;
    program.first_order().await?;
    let bad = [
        r#"{ "no": "order" }"#,
        r#"{ "sku": "TEA-001", "quantity": 1 }"#,
        r#"{ "order": "0190a1b2-0000-7000-8000-000000000001", "sku": "TEA-001", "quantity": 0 }"#,
        r#"{ "order": "0190a1b2-0000-7000-8000-000000000002", "sku": "\u0000", "quantity": 1 }"#,
    ];
    for payload in bad {
        program
            .execute(&format!(
                "insert into one_file.outbox (event_id, aggregate_id, aggregate_version, routing_key, payload)
                 values (gen_random_uuid(), gen_random_uuid(), 1, 'order.created', '{payload}')"
            ))
            .await?;
    }
    program.drain().await?;
    let connection = Connection::connect(&vhost.url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    eventually("the dead letters", DEADLINE, async || {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let queue =
            channel.queue_declare("one-file.inventory.dead".into(), passive, FieldTable::default()).await?;
        Ok((queue.message_count() == 4).then_some(()))
    })
    .await
}
