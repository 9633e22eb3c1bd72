//! A virtual host of one's own, and a plain channel on it to look behind the scenes.

use std::time::Duration;

use anyhow::Context;
use broker::{Endpoint, Link, Publisher};
use events::{
    Draft, Line, Money, OrderCreated, TraceContext,
    transport::{Outgoing, Publisher as _},
};
use futures_util::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions,
    },
    types::FieldTable,
};
use testbed::TestVhost;
use uuid::Uuid;

pub(crate) struct Host {
    pub(crate) channel: Channel,
    connection: Connection,
    vhost: TestVhost,
}

impl Host {
    /// With the topology in place.
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let vhost = testbed::vhost().await?;
        Endpoint::new(&vhost.url(), "test")?.check().await?;
        let connection = Connection::connect(&vhost.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { channel, connection, vhost })
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.vhost.url(), "test").unwrap()
    }

    pub(crate) fn url(&self) -> String {
        self.vhost.url()
    }

    /// One that an error may close.
    pub(crate) async fn another_channel(&self) -> anyhow::Result<Channel> {
        Ok(self.connection.create_channel().await?)
    }

    /// Connected and ready.
    pub(crate) async fn publisher(&self) -> anyhow::Result<Publisher> {
        let mut publisher = Publisher::new(self.endpoint(), Link::new("test"), Duration::from_secs(10));
        publisher.ready().await?;
        Ok(publisher)
    }

    /// Puts a message into `queue`, with whatever body and id.
    pub(crate) async fn put(&self, queue: &str, id: &str, body: &[u8]) -> anyhow::Result<()> {
        let properties = BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2);
        self.put_with(queue, properties, body).await
    }

    pub(crate) async fn put_with(
        &self,
        queue: &str,
        properties: BasicProperties,
        body: &[u8],
    ) -> anyhow::Result<()> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm = self.channel.basic_publish("".into(), queue.into(), options, body, properties).await?;
        anyhow::ensure!(confirm.await?.is_ack(), "the broker did not take a message");
        Ok(())
    }

    pub(crate) async fn put_event(&self, queue: &str, event: &Draft) -> anyhow::Result<()> {
        self.put(queue, &event.event_id.to_string(), event.payload.as_bytes()).await
    }

    /// Takes one message out of `queue`, waiting until there is one. By consuming: a queue with a single active
    /// consumer refuses `basic.get`.
    pub(crate) async fn take(&self, queue: &str) -> anyhow::Result<Delivery> {
        let channel = self.connection.create_channel().await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await?;
        let delivery = tokio::time::timeout(Duration::from_secs(20), deliveries.next())
            .await
            .with_context(|| format!("no message came into {queue}"))?
            .context("cancelled")??;
        delivery.ack(BasicAckOptions::default()).await?;
        channel.close(200, "done".into()).await?;
        Ok(delivery)
    }

    pub(crate) async fn is_empty(&self, queue: &str) -> anyhow::Result<bool> {
        Ok(self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?.is_none())
    }
}

/// An event that every consumer can apply.
pub(crate) fn order_created() -> Draft {
    let order = OrderCreated {
        order_id: Uuid::now_v7(),
        customer_id: Uuid::new_v4(),
        lines: vec![Line { sku: "TEA-001".into(), quantity: 2, unit_price: 625 }],
        total: Money { amount: 1250, currency: "EUR".into() },
    };
    let aggregate = ("order", order.order_id, 1);
    Draft::of("/orders", aggregate, &TraceContext::root(), &order).unwrap()
}

pub(crate) fn outgoing(event_type: &str) -> Outgoing {
    let event = order_created();
    Outgoing {
        id: event.event_id,
        event_type: event_type.into(),
        body: event.payload.into_bytes(),
        traceparent: event.headers["traceparent"].as_str().map(String::from),
    }
}
