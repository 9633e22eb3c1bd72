//! A connection that breaks after any number of bytes: in the handshake, in a frame, between publish and confirm.

use std::{collections::HashSet, time::Duration};

use anyhow::Context as _;
use broker::{Endpoint, Link, Publisher, topology};
use events::transport::{Outcome, Publisher as _};
use futures_util::StreamExt;
use lapin::{
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

use crate::support::{Host, outgoing};

/// Takes connections on a port of its own and passes them on. The first one is cut after `bytes` from the client.
async fn proxy(target: String, bytes: u64) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let mut limit = bytes;
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            tokio::spawn(pass(client, server, std::mem::replace(&mut limit, u64::MAX)));
        }
    });
    Ok(port)
}

async fn pass(client: TcpStream, server: TcpStream, limit: u64) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let _ = copy(&mut (&mut from_client).take(limit), &mut to_server).await;
        let _ = to_server.flush().await;
    };
    // Whichever ends first takes both directions with it.
    tokio::select! {
        () = up => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_after_any_number_of_bytes_loses_nothing_that_was_confirmed()
-> anyhow::Result<()> {
    let host = Host::new().await?;
    let url = host.url();
    let address = url.rsplit('@').next().and_then(|rest| rest.split('/').next()).context("no address")?;
    let mut confirmed = HashSet::new();
    let mut cut = 0;
    for bytes in (0..26_000).step_by(487) {
        let port = proxy(address.to_owned(), bytes).await?;
        let endpoint = Endpoint::new(&url.replace(address, &format!("127.0.0.1:{port}")), "test")?;
        let mut publisher = Publisher::new(endpoint, Link::new("test"), Duration::from_secs(5));
        let mut batch: Vec<_> = (0..20).map(|_| outgoing("OrderCreated")).collect();
        // The second attempt has a connection that lasts. A third and fourth are there for a busy machine.
        for _ in 0..4 {
            if publisher.ready().await.is_err() {
                cut += 1;
                continue;
            }
            let outcomes = publisher.publish(&batch).await;
            assert_eq!(outcomes.len(), batch.len());
            cut += usize::from(outcomes.contains(&Outcome::Unknown));
            let mut owed = vec![];
            for (message, outcome) in batch.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Confirmed => _ = confirmed.insert(message.id),
                    Outcome::Unknown => owed.push(message),
                    Outcome::Refused(refusal) => anyhow::bail!("cut after {bytes} bytes: {refusal}"),
                }
            }
            batch = owed;
            if batch.is_empty() {
                break;
            }
        }
        assert!(batch.is_empty(), "cut after {bytes} bytes: {} are still owed", batch.len());
    }
    assert!(cut > 30, "only {cut} connections were cut, so little was tested");

    // All of it is in the queue; copies are too, and that is what consumers are for.
    host.channel.basic_qos(1_000, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut deliveries = host
        .channel
        .basic_consume(topology::INVENTORY.into(), "".into(), options, FieldTable::default())
        .await?;
    while !confirmed.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(10), deliveries.next()).await;
        let delivery =
            next.with_context(|| format!("{} are missing", confirmed.len()))?.context("cancelled")??;
        let id = delivery.properties.message_id().as_ref().context("no id")?.as_str().parse::<Uuid>()?;
        confirmed.remove(&id);
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
