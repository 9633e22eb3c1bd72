//! The gap between the commit and the acknowledgement.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use testbed::eventually;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use uuid::Uuid;

use crate::{
    process::Mailer,
    room::{PATIENCE, Room, confirmed, publish_over, publisher},
};

/// Passes connections on to the broker. Once it is told to, it swallows what clients say, and still passes on what they
/// are told: a commit goes through, its acknowledgement does not.
async fn proxy(target: String, deaf: Arc<AtomicBool>) -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            let (from_client, mut to_client) = client.into_split();
            let (mut from_server, to_server) = server.into_split();
            tokio::spawn(listen(from_client, to_server, deaf.clone()));
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
        }
    });
    Ok(port)
}

async fn listen(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    deaf: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if !deaf.load(Ordering::SeqCst) {
            to.write_all(&buffer[..read]).await?;
        }
    }
}

#[tokio::test]
async fn a_mailer_that_is_killed_between_its_commit_and_its_acknowledgement_writes_one_mail()
-> anyhow::Result<()> {
    let (room, vhost) = (Room::new().await?, testbed::vhost().await?);
    let url = vhost.url();
    let address = url.rsplit('@').next().and_then(|rest| rest.split('/').next()).context("no address")?;
    let deaf = Arc::new(AtomicBool::new(false));
    let port = proxy(address.to_owned(), deaf.clone()).await?;
    let mailer = Mailer::start(&room, &url.replace(address, &format!("127.0.0.1:{port}"))).await?;
    let mut publisher = publisher(&url).await?;
    // From now on the event has as long as the consumer waits for an answer that does not come: three seconds.
    deaf.store(true, Ordering::SeqCst);
    let order = Uuid::now_v7();
    publish_over(&mut publisher, &[confirmed(order)]).await?;
    let mail = [(order, "confirmed".to_owned())];
    room.has(&mail).await?;
    mailer.kill().await?;

    let heir = Mailer::start(&room, &url).await?;
    eventually("the event to come again", PATIENCE, async || {
        Ok((heir.duplicates().await? == 1).then_some(()))
    })
    .await?;
    room.has(&mail).await
}
