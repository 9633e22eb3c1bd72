//! A proxy in front of the broker that sees what a client sends, and can hold it back, or end its connection.

use std::{sync::Arc, time::Duration};

use rabbitmq::Endpoint;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
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
        Ok((proxy_with(vhost, hold.held.clone(), Switch::default(), forwarded).await?, hold))
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
    proxy_with(vhost, Switch::default(), Switch::default(), forwarded).await
}

/// The same. While the switch is on, what the broker delivers is lost.
pub(crate) async fn proxy_that_loses_deliveries(vhost: &Vhost) -> anyhow::Result<(Endpoint, Switch)> {
    let loses = Switch::default();
    let endpoint = proxy_with(vhost, Switch::default(), loses.clone(), |(_, _, sent)| sent.len()).await?;
    Ok((endpoint, loses))
}

/// Forwards the frames of the broker, without deliveries while `loses` is on.
async fn forward_frames(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, loses: Switch) -> io::Result<()> {
    const METHOD: u8 = 1;
    const BASIC_DELIVER: [u8; 4] = [0, 60, 0, 60];
    let mut is_lost = false;
    loop {
        // The kind, the channel and the size of the payload, which one byte follows.
        let mut frame = vec![0; 7];
        from.read_exact(&mut frame).await?;
        let size = u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]);
        frame.resize(7 + usize::try_from(size).unwrap() + 1, 0);
        from.read_exact(&mut frame[7..]).await?;
        // A delivery is a method with a header and a body after it.
        if frame[0] == METHOD {
            is_lost = loses.is_on() && frame[7..].starts_with(&BASIC_DELIVER);
        }
        if !is_lost {
            to.write_all(&frame).await?;
        }
    }
}

/// While `held` is on nothing is forwarded to the broker.
async fn proxy_with(
    vhost: &Vhost,
    held: Switch,
    loses: Switch,
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
            let (forwarded, held, loses) = (forwarded.clone(), held.clone(), loses.clone());
            tokio::spawn(async move {
                let (mut from_client, to_client) = client.into_split();
                let (from_server, mut to_server) = server.into_split();
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
                    _ = forward_frames(from_server, to_client, loses) => {}
                }
            });
        }
    });
    Ok(endpoint)
}
