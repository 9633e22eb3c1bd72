//! TCP forwarders that count what a service sends: messages to PostgreSQL with their transactions, and AMQP's methods.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use reqwest::Url;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// One kind of message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) process: &'static str,
    /// The session's `application_name`, which is the name of its pool; or [`AMQP`].
    pub(crate) session: String,
    /// The statement, shortened; or AMQP's method.
    pub(crate) text: String,
}

/// How many messages of each kind there were, and how many transactions they ended, by commit or by rollback. A message to
/// PostgreSQL is a round trip: a simple query, or an extended exchange up to its Sync.
pub(crate) type Counts = BTreeMap<Kind, [u32; 2]>;

/// Counts what passes its forwarders. Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<Mutex<Counts>>);

/// The session of all connections to the broker.
pub(crate) const AMQP: &str = "AMQP";

/// The text of PostgreSQL's notifications to a listener.
pub(crate) const NOTIFICATION: &str = "notification from PostgreSQL";

impl Counter {
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts a forwarder for a process and returns `url` with the forwarder's address. The URL's scheme is the protocol.
    pub(crate) async fn forward(&self, process: &'static str, url: &str) -> Result<String> {
        let mut url = Url::parse(url)?;
        let protocol = if url.scheme() == "amqp" { Protocol::Amqp } else { Protocol::Postgres };
        let target = (url.host_str().context("the URL has no host")?.to_owned(), url.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let moved = url.set_host(Some("127.0.0.1")).is_ok()
            && url.set_port(Some(listener.local_addr()?.port())).is_ok();
        anyhow::ensure!(moved, "failed to put a forwarder's address into the URL");
        let counter = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let session = Session::new(counter.clone(), process, protocol);
                tokio::spawn(session.forward(client, target.clone()));
            }
        });
        Ok(url.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Postgres,
    Amqp,
}

/// Who sent a message. A client's first one has no type: PostgreSQL's startup message, AMQP's protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    ClientFirst,
    Client,
    Server,
}

impl Protocol {
    /// The length of the message or frame at the start of `bytes`, if that much has arrived.
    fn length(self, sender: Sender, bytes: &[u8]) -> Option<usize> {
        let (at, around) = match (self, sender) {
            (Self::Amqp, Sender::ClientFirst) => return (bytes.len() >= 8).then_some(8),
            // Its length does not include the head and the last octet.
            (Self::Amqp, _) => (3, 8),
            // PostgreSQL's lengths include themselves.
            (Self::Postgres, Sender::ClientFirst) => (0, 0),
            (Self::Postgres, _) => (1, 1),
        };
        let length = u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?);
        let length = around + usize::try_from(length).ok()?;
        (bytes.len() >= length).then_some(length)
    }
}

/// One connection.
struct Session {
    counter: Counter,
    protocol: Protocol,
    process: &'static str,
    name: String,
    /// The texts of the prepared statements, by their names.
    statements: HashMap<String, String>,
    /// What the next Sync ends. `None`: a Sync alone, which begins no transaction.
    exchange: Option<String>,
    /// What PostgreSQL has not answered yet, and whether it is in a transaction meanwhile.
    unanswered: VecDeque<(Kind, bool)>,
}

impl Session {
    fn new(counter: Counter, process: &'static str, protocol: Protocol) -> Self {
        let (name, statements, unanswered) = (AMQP.to_owned(), HashMap::new(), VecDeque::new());
        Self { counter, protocol, process, name, statements, exchange: None, unanswered }
    }

    async fn forward(self, mut client: TcpStream, target: (String, u16)) {
        let Ok(mut server) = TcpStream::connect(target).await else { return };
        // As the services' clients do. Otherwise a message in two segments waits for the answer to the first.
        let _ = client.set_nodelay(true).and(server.set_nodelay(true));
        let (protocol, session) = (self.protocol, Mutex::new(self));
        let see = |sender, message: &[u8]| {
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            match protocol {
                Protocol::Postgres => session.see_postgres(sender, message),
                Protocol::Amqp => session.see_amqp(sender, message),
            }
        };
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = pump(protocol, Sender::ClientFirst, from_client, to_server, see) => {}
            () = pump(protocol, Sender::Server, from_server, to_client, see) => {}
        }
    }

    fn kind(&self, text: String) -> Kind {
        Kind { process: self.process, session: self.name.clone(), text }
    }

    fn count(&self, kind: Kind, messages: u32, transactions: u32) {
        let mut counts = self.counter.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind).or_default();
        *count = [count[0] + messages, count[1] + transactions];
    }

    fn see_postgres(&mut self, sender: Sender, message: &[u8]) {
        let (kind, body) = (message[0], message.get(5..).unwrap_or_default());
        let mut texts =
            body.split(|octet| *octet == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        let mut next = || texts.next().unwrap_or_default();
        match (sender, kind) {
            (Sender::ClientFirst, _) => {
                let startup = String::from_utf8_lossy(message).into_owned();
                let name = startup.split('\0').skip_while(|text| *text != "application_name").nth(1);
                self.name = name.unwrap_or("no name").to_owned();
            }
            // Parse names a statement. Its text counts only if nothing else comes before the Sync.
            (Sender::Client, b'P') => {
                let (name, text) = (next(), shortened(&next()));
                self.exchange = Some(format!("(prepare) {text}"));
                self.statements.insert(name, text);
            }
            // Bind names a portal and the statement in it.
            (Sender::Client, b'B') => {
                next();
                self.exchange = Some(self.statements.get(&next()).cloned().unwrap_or_default());
            }
            (Sender::Client, b'S' | b'Q') => {
                let text = if kind == b'Q' { Some(shortened(&next())) } else { self.exchange.take() };
                let runs = text.is_some();
                let kind = self.kind(text.unwrap_or_else(|| "(sync)".to_owned()));
                self.count(kind.clone(), 1, 0);
                self.unanswered.push_back((kind, runs));
            }
            // NotificationResponse wakes a relay. It answers nothing.
            (Sender::Server, b'A') => self.count(self.kind(NOTIFICATION.to_owned()), 1, 0),
            // ReadyForQuery answers one message. `I`: the session is not inside a transaction any more. The first of a
            // connection answers its startup.
            (Sender::Server, b'Z') => {
                if let Some((kind, runs)) = self.unanswered.pop_front() {
                    self.count(kind, 0, u32::from(runs && body == b"I"));
                }
            }
            _ => {}
        }
    }

    fn see_amqp(&mut self, sender: Sender, frame: &[u8]) {
        // Of the other types are the heads and bodies of messages, and heartbeats.
        if sender == Sender::ClientFirst || frame[0] != 1 {
            return;
        }
        let number = |at: usize| frame.get(at..at + 2).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
        let text = match (sender, number(7), number(9)) {
            (Sender::Client, 60, 40) => {
                // A reserved number, the exchange, the routing key; both texts begin with their length.
                let text = |at: usize| frame.get(at + 1..at + 1 + usize::from(*frame.get(at)?));
                let key = text(13).and_then(|exchange| text(14 + exchange.len())).unwrap_or_default();
                format!("basic.publish {}", String::from_utf8_lossy(key))
            }
            (Sender::Client, 60, 80) => "basic.ack".to_owned(),
            (Sender::Client, 40, 10) => "exchange.declare".to_owned(),
            (Sender::Client, 50, 10) => "queue.declare".to_owned(),
            (Sender::Client, 50, 20) => "queue.bind".to_owned(),
            (Sender::Client, class, method) => format!("method {class}.{method}"),
            (_, 60, 60) => "basic.deliver from the broker".to_owned(),
            (_, 60, 80) => "basic.ack from the broker".to_owned(),
            // Answers, one for each request.
            _ => return,
        };
        self.count(self.kind(text), 1, 0);
    }
}

/// Forwards one direction, and shows each message before it is passed on: its answer may not be seen earlier.
async fn pump(
    protocol: Protocol,
    mut sender: Sender,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut see: impl FnMut(Sender, &[u8]),
) {
    let (mut chunk, mut unseen) = (vec![0; 16 * 1024], Vec::new());
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        unseen.extend_from_slice(&chunk[..read]);
        while let Some(length) = protocol.length(sender, &unseen) {
            see(sender, &unseen[..length]);
            unseen.drain(..length);
            if sender == Sender::ClientFirst {
                sender = Sender::Client;
            }
        }
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

/// A statement with single spaces, up to its first literal text, which differs from one execution to the next.
fn shortened(text: &str) -> String {
    let same = text.split('\'').next().unwrap_or_default();
    same.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &str) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body.as_bytes()].concat()
    }

    #[tokio::test]
    async fn messages_and_transactions_are_counted_by_statement() {
        let startup = message(b' ', "\0\x03\0\0application_name\0relay\0\0")[1..].to_vec();
        let sent = [
            startup,
            message(b'P', "s1\0select  $1\0\0\0"),
            message(b'S', ""),
            message(b'B', "\0s1\0"),
            message(b'S', ""),
            message(b'S', ""),
            message(b'Q', "begin; select f(12, 'a', '{3,4}')\0"),
            message(b'Q', "commit\0"),
        ];
        let mut answers: Vec<_> = ["I", "I", "I", "T", "I"].map(|status| message(b'Z', status)).into();
        answers.push(message(b'A', "\0\0\0\x01outbox\0\0"));
        let counter = Counter::default();
        let session = Mutex::new(Session::new(counter.clone(), "orders", Protocol::Postgres));
        let see = |sender, message: &[u8]| session.lock().unwrap().see_postgres(sender, message);
        pump(Protocol::Postgres, Sender::ClientFirst, &sent.concat()[..], tokio::io::sink(), see).await;
        pump(Protocol::Postgres, Sender::Server, &answers.concat()[..], tokio::io::sink(), see).await;
        let counts = counter.counts();
        let counts: Vec<_> =
            counts.iter().map(|(kind, count)| (kind.session.as_str(), kind.text.as_str(), *count)).collect();
        let expected = [
            ("relay", "(prepare) select $1", [1, 1]),
            ("relay", "(sync)", [1, 0]),
            ("relay", "begin; select f(12,", [1, 0]),
            ("relay", "commit", [1, 1]),
            ("relay", NOTIFICATION, [1, 0]),
            ("relay", "select $1", [1, 1]),
        ];
        assert_eq!(counts, expected);
    }
}
