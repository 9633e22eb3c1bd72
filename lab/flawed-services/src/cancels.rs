//! A consumer that the broker does not tell when it ends a subscription.

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

/// RabbitMQ announces the end of a subscription only to clients that say in the handshake that they want it.
const CAPABILITY: &[u8] = b"consumer_cancel_notifyt\x01";

/// Redirects the URL to a proxy in this process, which takes that wish out of the handshake.
pub(crate) async fn ignore_cancels(amqp_url: &mut String) -> anyhow::Result<()> {
    let (login, address) = amqp_url.rsplit_once('@').context("the URL has no login")?;
    let (broker, vhost) = address.split_once('/').context("the URL names no virtual host")?;
    let (broker, listener) = (broker.to_owned(), TcpListener::bind("127.0.0.1:0").await?);
    *amqp_url = format!("{login}@{}/{vhost}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(forward(client, broker.clone()));
        }
    });
    Ok(())
}

async fn forward(mut client: TcpStream, broker: String) -> std::io::Result<()> {
    let mut server = TcpStream::connect(broker).await?;
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.split(), server.split());
    let requests = async {
        let mut buffer = [0; 8192];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            let sent = &mut buffer[..length];
            if let Some(found) = sent.windows(CAPABILITY.len()).position(|bytes| bytes == CAPABILITY) {
                sent[found + CAPABILITY.len() - 1] = 0;
            }
            to_server.write_all(sent).await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        ended = copy(&mut from_server, &mut to_client) => ended.map(drop),
    }
}
