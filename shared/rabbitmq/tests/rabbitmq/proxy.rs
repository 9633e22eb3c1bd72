//! A proxy in front of the broker that sees what a client sends, and can hold it back, or end its connection.

use std::{sync::Arc, time::Duration};

use rabbitmq::Endpoint;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::support::{Switch, Vhost, until};

/// The class and the number of a method of AMQP, as a client sends them.
pub(crate) const BASIC_CONSUME: [u8; 4] = [0, 60, 0, 20];
pub(crate) const BASIC_CANCEL: [u8; 4] = [0, 60, 0, 30];
pub(crate) const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];

/// What a client sends: the number of its connection, how many bytes came before, and these bytes.
pub(crate) type Sent<'a> = (usize, usize, &'a [u8]);

/// Holds back the request that contains these bytes, the first one, and all that its client sends after it.
pub(crate) struct Hold {
    found: Switch,
    held: Switch,
}

impl Hold {
    /// A client sends one request after the other, so what is sent at once is one.
    pub(crate) async fn request(
        vhost: &Vhost,
        containing: &'static [&'static [u8]],
    ) -> anyhow::Result<(Endpoint, Self)> {
        let hold = Self { found: Switch::default(), held: Switch::default() };
        let (found, held) = (hold.found.clone(), hold.held.clone());
        let forwarded = move |(_, _, sent): Sent<'_>| {
            let contains = |bytes: &&[u8]| sent.windows(bytes.len()).any(|window| window == *bytes);
            if !found.is_on() && containing.iter().any(contains) {
                found.set(true);
                held.set(true);
            }
            sent.len()
        };
        Ok((proxy_with(vhost, hold.held.clone(), forwarded).await?, hold))
    }

    /// Waits until the request was sent.
    pub(crate) async fn sent(&self) -> anyhow::Result<()> {
        until("the request", || self.found.is_on()).await
    }

    /// Forwards what was held back.
    pub(crate) fn release(&self) {
        self.held.set(false);
    }
}

/// Forwards connections to the broker, and returns the endpoint for it. `forwarded` decides how many of the bytes that a client
/// sends are forwarded: fewer than all end the connection.
pub(crate) async fn proxy(
    vhost: &Vhost,
    forwarded: impl Fn(Sent<'_>) -> usize + Send + Sync + 'static,
) -> anyhow::Result<Endpoint> {
    proxy_with(vhost, Switch::default(), forwarded).await
}

/// The same. While `held` is on nothing is forwarded to the broker.
async fn proxy_with(
    vhost: &Vhost,
    held: Switch,
    forwarded: impl Fn(Sent<'_>) -> usize + Send + Sync + 'static,
) -> anyhow::Result<Endpoint> {
    let target = vhost.url.rsplit('@').next().and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::new(&vhost.url.replace(&target, &listener.local_addr()?.to_string()), "test")?;
    let forwarded = Arc::new(forwarded);
    tokio::spawn(async move {
        for connection in 0.. {
            let Ok((client, _)) = listener.accept().await else { return };
            let Ok(server) = TcpStream::connect(&target).await else { continue };
            let (forwarded, held) = (forwarded.clone(), held.clone());
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let up = async {
                    let (mut buffer, mut before) = (vec![0; 65_536], 0);
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        let part = forwarded((connection, before, &buffer[..read]));
                        while held.is_on() {
                            sleep(Duration::from_millis(5)).await;
                        }
                        if to_server.write_all(&buffer[..part]).await.is_err() || part < read {
                            break;
                        }
                        before += read;
                    }
                };
                // The end of one direction closes both.
                tokio::select! {
                    () = up => {}
                    _ = copy(&mut from_server, &mut to_client) => {}
                }
            });
        }
    });
    Ok(endpoint)
}
