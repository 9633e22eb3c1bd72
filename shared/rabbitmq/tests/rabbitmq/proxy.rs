//! A proxy in front of the broker that sees what a client sends, and can end its connection.

use std::sync::Arc;

use rabbitmq::Endpoint;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use crate::support::Vhost;

/// What a client sends: the number of its connection, how many bytes came before, and these bytes.
pub(crate) type Sent<'a> = (usize, usize, &'a [u8]);

/// Forwards connections to the broker, and returns the endpoint for it. `forwarded` decides how many of the bytes that a client
/// sends are forwarded: fewer than all end the connection.
pub(crate) async fn proxy(
    vhost: &Vhost,
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
            let forwarded = forwarded.clone();
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let up = async {
                    let (mut buffer, mut before) = (vec![0; 65_536], 0);
                    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
                        let part = forwarded((connection, before, &buffer[..read]));
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
