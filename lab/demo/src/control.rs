//! How a command in one terminal breaks the system that `demo up` runs in another.
//!
//! The processes are children of `demo up`, so that process has to act. It accepts lines over a loopback socket from
//! clients that send a token, which only this user can read. Faults belong to the connection on which they were
//! requested: when it closes, for whatever reason, they are repaired.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use crate::local_system::LocalSystem;
use crate::part::{ActiveFaults, part};

/// Longer than the slowest action, a broker's start on a busy machine.
const ACTION_DEADLINE: Duration = Duration::from_secs(150);
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// The longest first line, in bytes. A token has 32.
const MAX_TOKEN_LINE: u64 = 64;

/// A client's connection to `demo up`.
#[derive(Debug)]
pub(crate) struct Control {
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    read: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    /// Answers that are still to come. More than one after a request that was given up before its answer was there.
    owed: usize,
}

impl Control {
    pub(crate) async fn connect(address: &str, token: &str) -> Result<Self> {
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await??;
        let (read, write) = stream.into_split();
        let connection = Connection { read: BufReader::new(read).lines(), write, owed: 0 };
        let control = Self { connection: Mutex::new(connection) };
        timeout(CONNECT_DEADLINE, control.request(token)).await??;
        Ok(control)
    }

    /// Sends a line, and returns what follows the `ok` of the answer.
    pub(crate) async fn request(&self, line: &str) -> Result<String> {
        let mut connection = self.connection.lock().await;
        let Connection { read, write, owed } = &mut *connection;
        let exchange = async {
            *owed += 1;
            write.write_all(format!("{line}\n").as_bytes()).await?;
            let mut answer = read.next_line().await;
            *owed -= 1;
            // The earlier ones belong to requests that nothing waits for any more.
            while *owed > 0 {
                answer = read.next_line().await;
                *owed -= 1;
            }
            answer
        };
        let answer = timeout(ACTION_DEADLINE, exchange).await.context("`demo up` does not answer")??;
        let answer = answer.context("`demo up` has ended")?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, reason) => bail!("{reason}"),
        }
    }
}

/// Serves clients until the future is dropped. Notifies `stop` when a client requests the end of the system.
pub(crate) async fn serve(listener: TcpListener, token: String, system: Arc<LocalSystem>, stop: Arc<Notify>) {
    let token: Arc<str> = token.into();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let (token, system, stop) = (token.clone(), system.clone(), stop.clone());
            tokio::spawn(async move {
                let mut faults = ActiveFaults::default();
                // An error here means that the client has disconnected, or sent a wrong token.
                let _ = serve_client(stream, &token, &system, &stop, &mut faults).await;
                for (repair, part) in faults.repairs() {
                    let _ = system.act(repair, &part).await;
                }
            });
        }
    }
}

async fn serve_client(
    stream: TcpStream,
    token: &str,
    system: &LocalSystem,
    stop: &Notify,
    faults: &mut ActiveFaults,
) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let (mut read, mut first) = (BufReader::new(read), String::new());
    // Bounded: any user of the machine can connect.
    let mut bounded = (&mut read).take(MAX_TOKEN_LINE);
    timeout(CONNECT_DEADLINE, bounded.read_line(&mut first)).await??;
    ensure!(first.trim_end() == token, "wrong token");
    let mut lines = read.lines();
    write.write_all(b"ok\n").await?;
    while let Some(line) = lines.next_line().await? {
        let answer = match execute(&line, system, stop, faults).await {
            Ok(answer) => format!("ok {answer}\n"),
            Err(reason) => format!("error {}\n", format!("{reason:#}").replace('\n', "; ")),
        };
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// Executes `stop`, `pid TARGET` or `ACTION TARGET`.
async fn execute(
    line: &str,
    system: &LocalSystem,
    stop: &Notify,
    faults: &mut ActiveFaults,
) -> Result<String> {
    match line.split_once(' ') {
        None if line == "stop" => {
            stop.notify_one();
            Ok(String::new())
        }
        Some(("pid", target)) => {
            let pid = system.pid(part(target)?).await;
            Ok(pid.map_or("-".to_owned(), |pid| pid.to_string()))
        }
        Some((action, target)) => {
            let (action, part) = (action.parse()?, part(target)?);
            system.act(action, part).await?;
            faults.record(action, part);
            Ok(String::new())
        }
        None => bail!("unknown command `{line}`"),
    }
}
