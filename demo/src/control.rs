//! How a command in one terminal breaks the system that `demo up` runs in another: the processes are children of
//! that one, so it has to do it. Lines over a loopback socket, behind a token that only this user can read.
//!
//! Faults belong to the connection they came through. When it closes, for whatever reason, they are undone.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use crate::local_shop::LocalShop;
use crate::target::Faults;

/// Longer than the slowest action, a broker's start on a busy machine.
const DONE_WITHIN: Duration = Duration::from_secs(150);
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

/// The client's end.
#[derive(Debug)]
pub(crate) struct Control {
    connection: Mutex<(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf)>,
}

impl Control {
    pub(crate) async fn connect(address: &str, token: &str) -> Result<Self> {
        let stream = timeout(CONNECTED_WITHIN, TcpStream::connect(address)).await??;
        let (read, write) = stream.into_split();
        let control = Self { connection: Mutex::new((BufReader::new(read).lines(), write)) };
        timeout(CONNECTED_WITHIN, control.ask(token)).await??;
        Ok(control)
    }

    /// Sends a line and returns what follows the `ok` of the answer.
    pub(crate) async fn ask(&self, line: &str) -> Result<String> {
        let mut connection = self.connection.lock().await;
        let (read, write) = &mut *connection;
        let exchange = async {
            write.write_all(format!("{line}\n").as_bytes()).await?;
            read.next_line().await
        };
        let answer = timeout(DONE_WITHIN, exchange).await.context("`demo up` does not answer")??;
        let answer = answer.context("`demo up` has ended")?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, reason) => bail!("{reason}"),
        }
    }
}

/// Serves one client after the other until the future is dropped. `stop` is notified when a client asks for the end.
pub(crate) async fn serve(listener: TcpListener, token: String, shop: Arc<LocalShop>, stop: Arc<Notify>) {
    let token: Arc<str> = token.into();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let (token, shop, stop) = (token.clone(), shop.clone(), stop.clone());
            tokio::spawn(async move {
                let mut faults = Faults::default();
                // An error here is a client that has left, or a stranger.
                let _ = converse(stream, &token, &shop, &stop, &mut faults).await;
                for (remedy, target) in faults.remedies() {
                    let _ = shop.act(remedy, &target).await;
                }
            });
        }
    }
}

async fn converse(
    stream: TcpStream,
    token: &str,
    shop: &LocalShop,
    stop: &Notify,
    faults: &mut Faults,
) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let first = timeout(CONNECTED_WITHIN, lines.next_line()).await??;
    ensure!(first.as_deref() == Some(token), "a stranger");
    write.write_all(b"ok\n").await?;
    while let Some(line) = lines.next_line().await? {
        let answer = match obey(&line, shop, stop, faults).await {
            Ok(said) => format!("ok {said}\n"),
            Err(reason) => format!("error {}\n", format!("{reason:#}").replace('\n', "; ")),
        };
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

async fn obey(line: &str, shop: &LocalShop, stop: &Notify, faults: &mut Faults) -> Result<String> {
    match line.split_once(' ') {
        None if line == "stop" => {
            stop.notify_one();
            Ok(String::new())
        }
        Some(("pid", target)) => {
            let pid = shop.pid(&target.parse()?).await;
            Ok(pid.map_or("-".to_owned(), |pid| pid.to_string()))
        }
        Some((verb, target)) => {
            let (verb, target) = (verb.parse()?, target.parse()?);
            shop.act(verb, &target).await?;
            faults.note(verb, &target);
            Ok(String::new())
        }
        None => bail!("`{line}` is not understood"),
    }
}
