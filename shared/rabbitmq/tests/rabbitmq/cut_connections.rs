//! Connections that break after any number of bytes: in the handshake, in a frame, between publish and confirm.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::StreamExt;
use lapin::{
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use messaging::{PublishOutcome, Publisher as _};
use rabbitmq::{ConfirmingPublisher, ConnectionStatus, Endpoint, topology};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use uuid::Uuid;

use crate::support::{DEADLINE, Vhost, outgoing, refs};

/// Listens on a port of its own and forwards connections to `target`. Cuts the first one after `bytes` from the client.
async fn proxy(target: String, bytes: u64) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let mut limit = bytes;
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            tokio::spawn(forward(client, server, std::mem::replace(&mut limit, u64::MAX)));
        }
    });
    Ok(port)
}

async fn forward(client: TcpStream, server: TcpStream, limit: u64) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let _ = copy(&mut (&mut from_client).take(limit), &mut to_server).await;
        let _ = to_server.flush().await;
    };
    // The end of one direction closes both.
    tokio::select! {
        () = up => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}

#[tokio::test]
async fn connection_cut_after_any_number_of_bytes_loses_no_confirmed_message() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let url = vhost.url();
    let address = url.rsplit('@').next().and_then(|rest| rest.split('/').next()).context("no address")?;
    let mut confirmed = HashSet::new();
    let mut cut = 0;
    for bytes in (0..26_000).step_by(487) {
        let port = proxy(address.to_owned(), bytes).await?;
        let endpoint = Endpoint::new(&url.replace(address, &format!("127.0.0.1:{port}")), "test")?;
        let mut publisher =
            ConfirmingPublisher::new(endpoint, ConnectionStatus::new("test"), Duration::from_secs(5));
        let mut batch: Vec<_> = (0..20).map(|_| outgoing("OrderCreated")).collect();
        let (began, mut attempts) = (Instant::now(), 0);
        // Only the first connection is cut, so a later attempt confirms the rest.
        while !batch.is_empty() {
            let pending = batch.len();
            anyhow::ensure!(
                began.elapsed() < DEADLINE,
                "cut after {bytes} bytes: {pending} are still pending"
            );
            attempts += 1;
            if publisher.ready().await.is_err() {
                continue;
            }
            let outcomes = publisher.publish(&refs(&batch)).await;
            assert_eq!(outcomes.len(), batch.len());
            let mut unconfirmed = vec![];
            for (message, outcome) in batch.into_iter().zip(outcomes) {
                match outcome {
                    PublishOutcome::Confirmed => _ = confirmed.insert(message.id),
                    PublishOutcome::Unknown => unconfirmed.push(message),
                    PublishOutcome::Refused(refusal) => anyhow::bail!("cut after {bytes} bytes: {refusal}"),
                }
            }
            batch = unconfirmed;
        }
        cut += usize::from(attempts > 1);
    }
    assert!(cut > 30, "only {cut} connections were cut");

    // Each confirmed message is in the queue. Copies are too: consumers drop them.
    vhost.channel.basic_qos(1_000, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut deliveries = vhost
        .channel
        .basic_consume(topology::INVENTORY.into(), "".into(), options, FieldTable::default())
        .await?;
    while !confirmed.is_empty() {
        let delivery = timeout(DEADLINE, deliveries.next()).await;
        let delivery = delivery.with_context(|| format!("{} are missing", confirmed.len()))?;
        let delivery = delivery.context("the broker cancelled the consumer")??;
        let id = delivery.properties.message_id().as_ref().context("no id")?.as_str().parse::<Uuid>()?;
        confirmed.remove(&id);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
