use std::{
    fmt::Display,
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    ops::Deref,
    os::fd::AsFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lapin::{
    AsyncTcpStream, Channel, Connection, ConnectionProperties, Consumer,
    options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    runtime::default_runtime,
    tcp::AMQPUriTcpExt,
    types::{AMQPValue, FieldTable},
    uri::AMQPUri,
};
use tokio::{
    net::lookup_host,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    error::{Error, REQUEST_DEADLINE, request},
    queues::Queue,
    topology::{self, KnownQueues},
};

/// Seconds between heartbeats. A peer is given up after two missed ones: with RabbitMQ's default of 60 s that would be
/// two minutes, and below 5 s a busy machine gives false alarms.
const HEARTBEAT: u16 = 5;

/// What a connection is for: the name that the broker's pages show, and the largest frame in bytes.
///
/// The client keeps room for thirty-two frames in each direction. With RabbitMQ's default of 128 KiB that is 8 MiB for a
/// connection, and a service has four.
pub(crate) struct Role(&'static str, u32);

impl Role {
    // A body that is larger than a frame is sent in several frames, and our headers are small.
    pub(crate) const PUBLISHER: Self = Self("publisher", 16 * 1024);
    // A header is never divided, and a message of another sender may have a large one, so this is RabbitMQ's default.
    // Without it the client would enlarge its buffers after the handshake, and by that touch all of their pages.
    pub(crate) const CONSUMER: Self = Self("consumer", 128 * 1024);
    pub(crate) const COLLECTOR: Self = Self("collector", 128 * 1024);
    /// Asks once whether the broker accepts this client.
    pub(crate) const CHECK: Self = Self("check", 16 * 1024);
}

/// After this much silence a consumer checks its queue, and a publisher its connection before anything is claimed: an empty
/// queue and a dead broker look the same.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(2);

/// How long closing a connection may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// Where the broker is, and the name and queue of this client. Each user of the broker has a clone, which remembers the node
/// that it has tried last.
#[derive(Clone)]
pub struct Endpoint {
    nodes: Nodes,
    pub(crate) name: String,
    pub(crate) own_queue: Option<Queue>,
    pub(crate) partitions: u8,
    pub(crate) known_queues: KnownQueues,
}

impl Endpoint {
    /// Parses `amqp://user:password@host:port/vhost`, with commas between the hosts of a cluster. `name` is the service: the
    /// broker's management pages show it, and it is the `app_id` of our messages.
    ///
    /// # Errors
    /// When the URL is invalid, or names no virtual host: a trailing slash would mean the one with the empty name.
    pub fn new(url: &str, name: &str) -> Result<Self, Error> {
        let (nodes, known_queues) = (Nodes::parse(url)?, KnownQueues::default());
        Ok(Self { nodes, name: name.to_owned(), own_queue: None, partitions: 1, known_queues })
    }

    /// Adds the queue of an external consumer, which no other client declares: it exists from the first connection on.
    pub fn with_queue(self, own: Queue) -> Self {
        Self { own_queue: Some(own), ..self }
    }

    /// With another number of partitions than one: 1, 2, 4, 8 or 16. The same for all services.
    #[must_use]
    pub fn with_partitions(self, partitions: u8) -> Self {
        Self { partitions, ..self }
    }

    /// Connects to the next node.
    pub(crate) async fn connect(&self, Role(role, frame_max): Role) -> Result<OpenConnection, Error> {
        let deadline = Instant::now() + REQUEST_DEADLINE;
        let mut uri = self.nodes.next().clone();
        uri.query.heartbeat = Some(HEARTBEAT);
        uri.query.frame_max.get_or_insert(frame_max);
        let host = (uri.authority.host.as_str(), uri.authority.port);
        let Ok(found) = timeout_at(deadline, lookup_host(host)).await else {
            return Err(Error::Silent("look up the host"));
        };
        let addresses: Vec<_> = found.map_err(|error| Error::Lost(error.into()))?.collect();
        connect_to(&uri, &addresses, &format!("{} {role}", self.name), deadline).await
    }

    /// Opens a connection and a channel, lets `work` use them, and closes the connection. Declares the topology first,
    /// so that nothing is published before every queue that should receive it exists, whichever service starts first.
    ///
    /// A consumer's connection is closed without `basic.cancel` before it. With one, the broker makes the next consumer the
    /// active one while messages prefetched here are unacknowledged: it receives later messages first, and these after
    /// them. When a connection closes, both happen in one step. (Found by the soak: one order in 24,000.) It is closed
    /// after a failure too: a broker that was frozen may carry out the request to subscribe later, for a consumer that
    /// no one reads.
    pub(crate) async fn with_connection(
        &self,
        role: Role,
        work: impl AsyncFnOnce(&Connection, Channel) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let connection = self.connect(role).await?;
        let worked = async {
            let channel = request("channel.open", connection.create_channel()).await?;
            self.declare(&connection, &channel).await?;
            work(&connection.connection, channel).await
        };
        let ended = worked.await;
        close(connection).await;
        ended
    }

    /// Fails if the number of partitions is another one, or is being changed.
    pub(crate) async fn check_partitions(&self, channel: &Channel) -> Result<(), Error> {
        if self.own_queue.is_some() {
            Ok(())
        } else {
            topology::declare_number(channel, self.partitions).await
        }
    }

    pub(crate) async fn declare(&self, connection: &Connection, channel: &Channel) -> Result<(), Error> {
        topology::declare(connection, channel, self.own_queue, self.partitions, &self.known_queues).await
    }

    /// The login of this client.
    pub(crate) fn login(&self) -> &str {
        &self.nodes.last().authority.userinfo.username
    }

    /// How many nodes the broker has.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// A failure with the node at which it happened, the one that was tried last.
    pub(crate) fn at_node(&self, failure: impl Display) -> String {
        format!("{failure} ({})", self.nodes.address())
    }
}

/// Connects to the first address that answers. Each has its share of the time: one that is silent must not keep the client from
/// the next.
async fn connect_to(
    uri: &AMQPUri,
    addresses: &[SocketAddr],
    name: &str,
    deadline: Instant,
) -> Result<OpenConnection, Error> {
    let mut failure = Error::Silent("connect");
    for (tried, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - tried).unwrap_or(1);
        let mut uri = uri.clone();
        uri.authority.host = address.ip().to_string();
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        match timeout(share, OpenConnection::open(uri, properties)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => match Error::from(error) {
                lost @ Error::Lost(_) => failure = lost,
                refused => return Err(refused),
            },
            Err(_) => failure = Error::Silent("connect"),
        }
    }
    Err(failure)
}

/// A connection to the broker. When it is dropped, its socket ends too.
pub(crate) struct OpenConnection {
    connection: Connection,
    _socket: Arc<Socket>,
}

impl OpenConnection {
    async fn open(uri: AMQPUri, properties: ConnectionProperties) -> Result<Self, lapin::Error> {
        let socket = Arc::new(Socket::default());
        let opened = Arc::downgrade(&socket);
        let connection = Connection::connector(
            uri,
            default_runtime()?,
            async move |uri, runtime| {
                let connecting = timeout(REQUEST_DEADLINE, uri.connect_async(&runtime)).await;
                let stream = connecting.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                // It may have been given up in the meantime.
                let socket = opened.upgrade().ok_or(io::Error::from(io::ErrorKind::ConnectionAborted))?;
                // The other kinds are for TLS, which this build does not have.
                if let AsyncTcpStream::Plain(plain) = &stream {
                    let _ = socket.0.set(plain.get_ref().as_fd().try_clone_to_owned()?.into());
                }
                Ok(stream)
            },
            properties,
        );
        Ok(Self { connection: connection.await?, _socket: socket })
    }
}

impl Deref for OpenConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// The socket of a connection, which ends when this is dropped. lapin reads from it in a thread, without a time-out for the
/// handshake and for a close: of a broker that accepts and stays silent, each attempt would leave a thread and a socket behind.
#[derive(Default)]
struct Socket(OnceLock<TcpStream>);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(stream) = self.0.get() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts consuming a queue, with at most `prefetch` unacknowledged deliveries. Of the consumers of a queue, the one with the
/// highest priority is active: from RabbitMQ 4.0 on, and before it the first one.
pub(crate) async fn subscribe(
    channel: &Channel,
    queue: &str,
    prefetch: u16,
    priority: Option<i32>,
) -> Result<Consumer, Error> {
    // Before consuming: otherwise the first deliveries are not limited.
    request("basic.qos", channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
    let (options, mut arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    if let Some(priority) = priority {
        arguments.insert("x-priority".into(), AMQPValue::LongInt(priority));
    }
    let consume = channel.basic_consume(queue.into(), "".into(), options, arguments);
    request("basic.consume", consume).await
}

/// Asks how many messages wait in a queue, without those that a consumer holds, and whether it has an active consumer. An error
/// means that the broker or the queue is gone.
///
/// If the leader of a quorum queue does not answer within 250 ms, RabbitMQ reports no messages *and no consumer*.
pub(crate) async fn queue_state(channel: &Channel, queue: &str) -> Result<(u32, bool), Error> {
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let asked = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let state = request("queue.declare", asked).await?;
    Ok((state.message_count(), state.consumer_count() > 0))
}

/// How many messages wait in a queue that this process consumes. `None`: unknown. A consumer is there, active or as a standby
/// of one, so without any the number of messages means nothing.
pub(crate) async fn message_count(channel: &Channel, queue: &str) -> Result<Option<u32>, Error> {
    let (messages, is_consumed) = queue_state(channel, queue).await?;
    Ok(is_consumed.then_some(messages))
}

/// How many checks in a row found no leader of a queue. An election takes a second; a node that is cut off from a majority finds
/// none until it is back, and may go on serving clients.
#[derive(Default)]
pub(crate) struct LeaderlessChecks(u32);

impl LeaderlessChecks {
    /// Counts the result of a check: see [`message_count`].
    ///
    /// # Errors
    /// When there were three in a row, and another node may know a leader.
    pub(crate) fn count(&mut self, messages: Option<u32>, endpoint: &Endpoint) -> Result<(), Error> {
        self.0 = if messages.is_some() { 0 } else { self.0 + 1 };
        if self.0 < 3 || endpoint.nodes() == 1 { Ok(()) } else { Err(Error::NoLeader) }
    }
}

/// Closes a connection. An error makes no difference: what was not acknowledged returns to the broker either way.
pub(crate) async fn close(connection: OpenConnection) {
    let _ = timeout(CLOSE_DEADLINE, connection.close(200, "bye".into())).await;
}

const SCHEME: &str = "amqp://";

/// The nodes of a broker: named in one URL, and tried in turn. lapin connects to one address. Each clone begins at a random one, so that the connections of all processes are spread, and takes
/// the next one for each attempt. So a node that is down, cut off or without a majority costs one attempt.
struct Nodes {
    uris: Arc<[AMQPUri]>,
    /// The index of the node that was tried last.
    last: AtomicUsize,
}

impl Nodes {
    /// Parses `amqp://user:password@host:port,host:port/vhost`. The nodes of a cluster share users and virtual hosts.
    fn parse(url: &str) -> Result<Self, Error> {
        let Some(rest) = url.strip_prefix(SCHEME) else {
            return Err(Error::Url("it must begin with amqp://: this build has no TLS"));
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (login, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
        let uris: Result<Vec<_>, _> =
            hosts.split(',').map(|host| node(&format!("{SCHEME}{login}{host}{path}"), host)).collect();
        Ok(Self::starting_anywhere(uris?.into()))
    }

    fn starting_anywhere(uris: Arc<[AMQPUri]>) -> Self {
        Self { last: AtomicUsize::new(fastrand::usize(..uris.len())), uris }
    }

    fn count(&self) -> usize {
        self.uris.len()
    }

    /// The node for the next attempt.
    fn next(&self) -> &AMQPUri {
        self.last.fetch_add(1, Ordering::Relaxed);
        self.last()
    }

    fn last(&self) -> &AMQPUri {
        &self.uris[self.last.load(Ordering::Relaxed) % self.uris.len()]
    }

    /// The host and the port of the node that was tried last.
    fn address(&self) -> String {
        let authority = &self.last().authority;
        format!("{}:{}", authority.host, authority.port)
    }
}

impl Clone for Nodes {
    fn clone(&self) -> Self {
        Self::starting_anywhere(self.uris.clone())
    }
}

/// Parses the URL of one node. `host` is how it names the node.
fn node(url: &str, host: &str) -> Result<AMQPUri, Error> {
    // The parser's error quotes the URL, and the URL holds the password.
    let form = "it looks like amqp://user:password@host:5672/vhost, with special characters percent-encoded and a comma between hosts";
    let uri: AMQPUri = url.parse().map_err(|_: String| Error::Url(form))?;
    // The parser takes what it does not understand, for example an IPv6 address or no host, for `localhost`.
    if host.is_empty() || !host.starts_with(uri.authority.host.as_str()) {
        return Err(Error::Url("each of its hosts must be one name or IPv4 address"));
    }
    if uri.vhost.is_empty() {
        return Err(Error::Url("it ends in a slash, which names a virtual host without a name"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, net::TcpListener};

    use testbed::eventually;

    use super::*;

    /// How many threads of lapin this process has.
    fn io_threads() -> usize {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.flat_map(|thread| fs::read_to_string(thread.path().join("comm")));
        names.filter(|name| name.trim() == "lapin-io-loop").count()
    }

    /// The other tests here connect to nothing, so all threads are this one's.
    #[tokio::test]
    async fn a_broker_that_accepts_and_stays_silent_costs_no_thread_and_is_passed_over() -> anyhow::Result<()>
    {
        const DEADLINE: Duration = Duration::from_secs(60);
        let silent = TcpListener::bind("127.0.0.1:0")?;
        let silent_address = silent.local_addr()?;
        let endpoint = Endpoint::new(&format!("amqp://shop:shop@{silent_address}/shop"), "test")?;
        let attempts = [(); 4].map(|()| endpoint.connect(Role::CHECK));
        for attempt in futures_util::future::join_all(attempts).await {
            assert!(matches!(attempt.map(drop), Err(Error::Silent("connect"))));
        }
        eventually("the threads to end", DEADLINE, async || Ok((io_threads() == 0).then_some(()))).await?;

        // Several addresses of one name.
        let vhost = testbed::vhost().await?;
        let endpoint = Endpoint::new(&vhost.url(), "test")?;
        let uri = endpoint.nodes.next();
        let broker = SocketAddr::new("127.0.0.1".parse()?, uri.authority.port);
        let connection =
            connect_to(uri, &[silent_address, broker], "test", Instant::now() + DEADLINE / 10).await?;
        assert_eq!(io_threads(), 1);
        close(connection).await;
        eventually("the last thread to end", DEADLINE, async || Ok((io_threads() == 0).then_some(()))).await
    }

    #[test]
    fn each_attempt_takes_the_next_node_and_clones_begin_at_different_ones() {
        let nodes = Nodes::parse("amqp://shop:p%40ss@one,two:5673,three/shop").unwrap();
        let attempt = || {
            let uri = nodes.next();
            assert_eq!((uri.authority.userinfo.password.as_str(), uri.vhost.as_str()), ("p@ss", "shop"));
            nodes.address()
        };
        let round = BTreeSet::from([attempt(), attempt(), attempt()]);
        assert_eq!(round, ["one:5672", "three:5672", "two:5673"].map(String::from).into());
        let first = attempt();
        assert_eq!([attempt(), attempt(), attempt()][2], first);
        let begins: BTreeSet<_> = (0..1000).map(|_| nodes.clone().address()).collect();
        assert_eq!(begins, round);
    }
}
