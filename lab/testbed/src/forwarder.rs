//! A forwarder whose open connections can fall silent, as behind a network that drops packets.

use std::future::pending;

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Forwards TCP connections to a server.
#[derive(Debug)]
pub struct Forwarder {
    port: u16,
    target: watch::Sender<String>,
    silenced: watch::Sender<()>,
}

impl Forwarder {
    /// `target` is the server's host and port.
    pub async fn start(target: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, silenced) = (listener.local_addr()?.port(), watch::Sender::new(()));
        let (target, silences) = (watch::Sender::new(target), silenced.clone());
        let targets = target.subscribe();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (target, mut silence) = (targets.borrow().clone(), silences.subscribe());
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        // Open, and not read any more.
                        _ = silence.changed() => pending().await,
                    }
                });
            }
        });
        Ok(Self { port, target, silenced })
    }

    /// Forwards to the server of a database's URL, and returns the URL of the same database behind the forwarder.
    pub async fn to_database(url: &str) -> Result<(Self, String)> {
        let mut url = reqwest::Url::parse(url)?;
        let host = url.host_str().unwrap_or("127.0.0.1").to_owned();
        let forwarder = Self::start(format!("{host}:{}", url.port().unwrap_or(5432))).await?;
        let moved = url.set_host(Some("127.0.0.1")).is_ok() && url.set_port(Some(forwarder.port)).is_ok();
        anyhow::ensure!(moved, "{url} has no host");
        Ok((forwarder, url.into()))
    }

    /// Where it listens, on the loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to this host and port. Those that are open stay where they are.
    pub fn redirect(&self, target: String) {
        self.target.send_replace(target);
    }

    /// From now on nothing arrives of the connections that are open. New ones work.
    pub fn silence_open_connections(&self) {
        self.silenced.send_replace(());
    }
}
