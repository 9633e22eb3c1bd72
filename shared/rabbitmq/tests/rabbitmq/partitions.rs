//! Partitions: an aggregate's events always go to the same queue, and one consumer at a time has it.

use std::collections::{BTreeSet, HashMap};

use futures_util::StreamExt as _;
use lapin::{
    ExchangeKind,
    options::{
        BasicAckOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use messaging::{Outgoing, PublishOutcome, Publisher as _};
use rabbitmq::{Endpoint, Error, queues};
use serde_json::Value;
use testbed::{Rabbitmq, eventually};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    proxy::{BASIC_CANCEL, BASIC_CONSUME, CHANNEL_CLOSE, Hold},
    scripted::{ScriptedHandler, consume_with},
    support::{DEADLINE, QUEUE, Running, TestPublisher, Vhost, order_created, outgoing},
};

const NUMBER: u8 = 4;

fn partition(index: usize) -> String {
    queues::partitions(QUEUE, NUMBER).nth(index).unwrap()
}

impl Vhost {
    fn with_partitions(&self, number: u8) -> Endpoint {
        self.endpoint().with_partitions(number)
    }

    /// Publishes so many events of as many aggregates, and returns the lane of each.
    async fn publish_partitioned(&self, events: usize) -> anyhow::Result<HashMap<Uuid, i16>> {
        let mut publisher = TestPublisher::new(self.with_partitions(NUMBER), DEADLINE);
        publisher.until_ready().await?;
        let batch: Vec<_> = (0..events).map(|_| outgoing("OrderCreated")).collect();
        let outcomes = publisher.publish(&batch).await;
        anyhow::ensure!(outcomes.iter().all(|outcome| *outcome == PublishOutcome::Confirmed), "{outcomes:?}");
        Ok(batch.iter().map(|Outgoing { id, lane, .. }| (*id, *lane)).collect())
    }

    /// Records another number of partitions, as a change does.
    async fn record(&self, number: &str) -> anyhow::Result<lapin::Channel> {
        let channel = self.open_channel().await?;
        channel.exchange_delete("shop.partitions".into(), ExchangeDeleteOptions::default()).await?;
        let mut arguments = FieldTable::default();
        let recorded = AMQPValue::LongString(format!("shop.partitions.{number}").into());
        arguments.insert("alternate-exchange".into(), recorded);
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare("shop.partitions".into(), ExchangeKind::Fanout, durable, arguments).await?;
        Ok(channel)
    }

    /// The ids of so many messages of a queue.
    async fn ids(&self, queue: &str, count: usize) -> anyhow::Result<Vec<Uuid>> {
        let (channel, mut deliveries) = self.consume(queue, 0).await?;
        let mut ids = vec![];
        while ids.len() < count {
            let Some(delivery) = timeout(DEADLINE, deliveries.next()).await? else { break };
            let delivery = delivery?;
            ids.push(delivery.properties.message_id().as_ref().unwrap().as_str().parse()?);
            delivery.ack(BasicAckOptions::default()).await?;
        }
        channel.close(200, "done".into()).await?;
        Ok(ids)
    }
}

/// The number of lanes never changes, so neither does the partition of an aggregate while their number does not.
#[tokio::test]
async fn partition_of_an_event_depends_on_its_aggregate_only() -> anyhow::Result<()> {
    let vhost = Vhost::partitioned(NUMBER).await?;
    // An external consumer knows nothing of partitions.
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    vhost.channel.queue_declare("external".into(), durable, FieldTable::default()).await?;
    let (exchange, key) = (queues::EVENTS.into(), "order.created".into());
    let options = QueueBindOptions::default();
    vhost.channel.queue_bind("external".into(), exchange, key, options, FieldTable::default()).await?;

    let published = vhost.publish_partitioned(200).await?;
    let all: BTreeSet<_> = published.keys().copied().collect();
    let external = vhost.ids("external", 200).await?;
    assert_eq!(external.into_iter().collect::<BTreeSet<_>>(), all);
    assert!(vhost.is_empty("external").await?, "a message has two keys, and comes once");
    let mut found = BTreeSet::new();
    for index in 0..usize::from(NUMBER) {
        let expected: BTreeSet<_> = published
            .iter()
            .filter(|(_, lane)| usize::try_from(**lane % i16::from(NUMBER)).unwrap() == index)
            .map(|(id, _)| *id)
            .collect();
        assert!(!expected.is_empty(), "200 aggregates have every lane");
        let ids: BTreeSet<_> = vhost.ids(&partition(index), expected.len()).await?.into_iter().collect();
        assert_eq!(ids, expected, "partition {index}");
        found.extend(ids);
    }
    assert_eq!(found, all);
    Ok(())
}

#[test]
fn all_events_of_an_aggregate_have_its_lane_whatever_they_are() {
    let first = order_created();
    let cancelled = events::NewEvent::of(
        first.aggregate_id,
        2,
        &events::TraceContext::root(),
        &events::OrderCancelled {
            order_id: first.aggregate_id,
            cause: events::Cause::Customer,
            detail: String::new(),
        },
    );
    assert_eq!(first.lane, cancelled.unwrap().lane);
    assert_eq!(first.lane, events::lane(first.aggregate_id));
}

fn consume(vhost: &Vhost, handler: &ScriptedHandler) -> Running {
    consume_with(vhost.with_partitions(NUMBER), handler, |consumer| consumer.partition(partition(0)))
}

#[tokio::test]
async fn standby_takes_over_a_partition_with_all_that_was_not_acknowledged() -> anyhow::Result<()> {
    let vhost = Vhost::partitioned(NUMBER).await?;
    let (hanging, standby) = (ScriptedHandler::that_hangs(), ScriptedHandler::that_applies());
    let first = consume(&vhost, &hanging);
    first.until_working().await?;
    let _second = consume(&vhost, &standby);
    let published = vhost.publish_partitioned(100).await?;
    // RabbitMQ activates by it from 4.0 on.
    eventually("two consumers with their priorities", DEADLINE, async || {
        let queue: Value = serde_json::from_str(&vhost.operator().describe_queue(&partition(0)).await?)?;
        let consumers = queue["consumer_details"].as_array().cloned().unwrap_or_default();
        let priorities: BTreeSet<_> =
            consumers.iter().filter_map(|consumer| consumer["arguments"]["x-priority"].as_i64()).collect();
        Ok((priorities.len() == 2).then_some(()))
    })
    .await?;
    first.kill();
    let own: Vec<_> = published.iter().filter(|(_, lane)| **lane % 4 == 0).map(|(id, _)| *id).collect();
    eventually("the standby to have applied everything", DEADLINE, async || {
        Ok((standby.applied().len() == own.len()).then_some(()))
    })
    .await?;
    let applied: BTreeSet<_> = standby.applied().into_iter().collect();
    assert_eq!(applied, own.into_iter().collect());
    Ok(())
}

#[tokio::test]
async fn another_number_of_partitions_is_refused_until_the_queues_are_drained() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = vhost.put_event().await?;
    let refused = vhost.with_partitions(NUMBER).check().await;
    assert!(matches!(refused, Err(Error::OtherPartitions { current: 1, wanted: NUMBER })), "{refused:?}");
    // What runs already with the wrong number neither publishes nor consumes.
    let mut publisher = TestPublisher::new(vhost.with_partitions(NUMBER), DEADLINE);
    let reason = publisher.publisher.ready().await.unwrap_err().to_string();
    assert!(reason.contains("have 1 partitions"), "{reason}");
    let handler = ScriptedHandler::that_applies();
    consume(&vhost, &handler).until_failing("have 1 partitions").await?;

    let (held, mut deliveries) = vhost.consume(QUEUE, 1).await?;
    let delivery = timeout(DEADLINE, deliveries.next()).await?.unwrap()?;
    assert_eq!(delivery.properties.message_id().as_ref().unwrap().as_str(), event.to_string());
    let refused = vhost.with_partitions(NUMBER).check().await;
    assert!(refused.is_err(), "a consumer holds a message");
    delivery.ack(BasicAckOptions::default()).await?;
    held.close(200, "done".into()).await?;

    vhost.count_without_consumers(QUEUE).await?;
    vhost.with_partitions(NUMBER).check().await?;
    let published = vhost.publish_partitioned(20).await?;
    let mut messages = 0;
    for index in 0..usize::from(NUMBER) {
        messages += vhost.counts(&partition(index)).await?.0;
    }
    assert_eq!(usize::try_from(messages)?, published.len());
    assert!(vhost.is_empty(QUEUE).await?, "the old queue is still bound");
    let refused = vhost.endpoint().check().await;
    assert!(matches!(refused, Err(Error::OtherPartitions { current: NUMBER, wanted: 1 })), "{refused:?}");
    Ok(())
}

/// A process may die at any step of a change. Nothing works with either number until one has started again.
#[tokio::test]
async fn interrupted_change_of_the_number_is_finished_or_undone_at_the_next_start() -> anyhow::Result<()> {
    for wanted in [NUMBER, 1] {
        let vhost = Vhost::new().await?;
        vhost.count_without_consumers(QUEUE).await?;
        let channel = vhost.record("1.changing").await?;
        let (exchange, key) = (queues::EVENTS.into(), "order.created".into());
        channel.queue_unbind(QUEUE.into(), exchange, key, FieldTable::default()).await?;
        for number in [NUMBER, 1] {
            let mut publisher = TestPublisher::new(vhost.with_partitions(number), DEADLINE);
            let reason = publisher.publisher.ready().await.unwrap_err().to_string();
            assert!(reason.contains("have 1 partitions"), "{reason}");
        }

        vhost.with_partitions(wanted).check().await?;
        let mut publisher = TestPublisher::new(vhost.with_partitions(wanted), DEADLINE);
        publisher.until_ready().await?;
        assert_eq!(publisher.publish(&[outgoing("OrderCreated")]).await, [PublishOutcome::Confirmed]);
        assert_eq!(vhost.is_empty(QUEUE).await?, wanted != 1, "{wanted}");
    }
    Ok(())
}

/// A relay of the old number may still run. An external consumer's queue takes the event, so it is not returned.
#[tokio::test]
async fn event_that_no_service_received_because_the_number_was_changed_is_not_confirmed() -> anyhow::Result<()>
{
    let vhost = Vhost::new().await?;
    let mut publisher = vhost.publisher().await?;
    let (queue, exchange, key) = ("external", queues::EVENTS, "order.created");
    let channel = vhost.record("1.changing").await?;
    channel.queue_declare(queue.into(), QueueDeclareOptions::default(), FieldTable::default()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default()).await?;
    for service in [queues::INVENTORY, queues::BILLING] {
        let arguments = FieldTable::default();
        channel.queue_unbind(service.into(), exchange.into(), key.into(), arguments).await?;
    }
    assert_eq!(publisher.publish(&[outgoing("OrderCreated")]).await, [PublishOutcome::Unknown]);
    Ok(())
}

/// A process may be so slow that the number is changed while it declares the queues of the old one.
#[tokio::test]
async fn late_declaration_with_the_old_number_leaves_no_binding() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let (late, hold) = Hold::request(&vhost, &[b"orders.events.dead"]).await?;
    let late = consume_with(late, &ScriptedHandler::that_applies(), |consumer| consumer);
    hold.sent().await?;
    let channel = vhost.record("4").await?;
    for queue in queues::SHOP_QUEUES {
        for key in queue.keys {
            let (exchange, arguments) = (queues::EVENTS.into(), FieldTable::default());
            channel.queue_unbind(queue.name.into(), exchange, (*key).into(), arguments).await?;
        }
    }
    hold.release();
    late.until_failing("have 4 partitions").await?;
    vhost.publish_partitioned(20).await?;
    assert!(vhost.is_empty(QUEUE).await?, "the old queue is bound again");
    Ok(())
}

#[tokio::test]
async fn message_that_a_check_of_the_queues_has_received_stays_the_first() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    // The check begins with this queue.
    let queue = queues::ORDERS;
    vhost.count_without_consumers(queue).await?;
    let ids = ["first", "second"];
    for id in ids {
        vhost.put(queue, id, b"").await?;
    }
    let (endpoint, hold) = Hold::request(&vhost, &[&BASIC_CANCEL, &CHANNEL_CLOSE]).await?;
    let checking = tokio::spawn(async move { endpoint.with_partitions(NUMBER).check().await });
    hold.sent().await?;
    let (_channel, mut deliveries) = vhost.consume(queue, 2).await?;
    hold.release();
    for id in ids {
        let delivery = timeout(DEADLINE, deliveries.next()).await?.unwrap()?;
        assert_eq!(delivery.properties.message_id().as_ref().unwrap().as_str(), id);
    }
    assert!(checking.await?.is_err(), "the queue is in use");
    Ok(())
}

/// RabbitMQ reports no consumer of a queue whose leader does not answer.
#[tokio::test]
async fn consumer_does_not_take_a_queue_for_its_own_because_the_leader_was_silent() -> anyhow::Result<()> {
    let rabbitmq = Rabbitmq::private().await?;
    let vhost = Vhost::at(rabbitmq.url()).await?;
    let owner = consume_with(vhost.endpoint(), &ScriptedHandler::that_hangs(), |consumer| consumer);
    owner.until_working().await?;
    vhost.put_event().await?;
    vhost.until_delivered().await?;
    rabbitmq.suspend_queue(QUEUE, true).await?;
    let (endpoint, hold) = Hold::request(&vhost, &[&BASIC_CONSUME]).await?;
    let standby = consume_with(endpoint, &ScriptedHandler::that_applies(), |consumer| consumer);
    hold.sent().await?;
    hold.release();
    rabbitmq.suspend_queue(QUEUE, false).await?;
    standby.until_working().await?;
    eventually("the standby to look at its queue", DEADLINE, async || Ok(standby.status.caught_up()))
        .await
        .map(|is_owner| assert!(!is_owner, "the other consumer holds a message"))
}
