use std::time::Duration;

use lapin::{
    Channel, Connection, ConnectionProperties, Consumer,
    options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions},
    types::FieldTable,
    uri::AMQPUri,
};

use crate::{
    error::{Error, REQUEST_DEADLINE, within},
    replies::Fault,
    topology::{self, KnownQueues, Queue},
};

/// Seconds between heartbeats. A peer is given up after two missed ones: with RabbitMQ's default of 60 s that would be
/// two minutes, and below 5 s a busy machine gives false alarms.
const HEARTBEAT: u16 = 5;

/// What a connection is for: the name that the broker's pages show, and the largest frame.
///
/// The client keeps room for thirty-two frames in each direction. With RabbitMQ's default of 128 KiB that is 8 MiB for a
/// connection, and a service has four.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role {
    Publisher,
    Consumer,
    Collector,
    /// Asks once whether the broker accepts this client.
    Check,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Consumer => "consumer",
            Self::Collector => "collector",
            Self::Check => "check",
        }
    }

    /// In bytes.
    fn frame_max(self) -> u32 {
        match self {
            // A body that is larger than a frame is sent in several frames, and our headers are small.
            Self::Publisher | Self::Check => 16 * 1024,
            // A header is never divided, and a message of another sender may have a large one, so this is RabbitMQ's default.
            // Without it the client would enlarge its buffers after the handshake, and by that touch all of their pages.
            Self::Consumer | Self::Collector => 128 * 1024,
        }
    }
}

/// How long closing a connection may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// Where the broker is, and the name and queue of this client.
#[derive(Clone)]
pub struct Endpoint {
    uri: AMQPUri,
    name: String,
    own_queue: Option<Queue>,
    known_queues: KnownQueues,
}

impl Endpoint {
    /// Parses `amqp://user:password@host:port/vhost`. `name` is the service: the broker's management pages show it, and
    /// it is the `app_id` of our messages.
    ///
    /// # Errors
    /// When the URL is invalid, or names no virtual host: a trailing slash would mean the one with the empty name.
    pub fn new(url: &str, name: &str) -> Result<Self, Error> {
        // The parser's error quotes the URL, and the URL holds the password.
        let mut uri: AMQPUri = url.parse().map_err(|_: String| {
            Error::Url(
                "it looks like amqp://user:password@host:5672/vhost, with special characters percent-encoded"
                    .into(),
            )
        })?;
        if !url.starts_with("amqp://") {
            return Err(Error::Url("it must begin with amqp://: this build has no TLS".into()));
        }
        // The parser takes what it does not understand, such as an IPv6 address or a list of hosts, for `localhost`.
        let host = &uri.authority.host;
        let named = url.rsplit('@').next().unwrap_or_default().trim_start_matches("amqp://");
        if !named.starts_with(host.as_str()) || host.contains(',') {
            return Err(Error::Url("its host must be one name or IPv4 address".into()));
        }
        if uri.vhost.is_empty() {
            return Err(Error::Url("it ends in a slash, which names a virtual host without a name".into()));
        }
        uri.query.heartbeat = Some(HEARTBEAT);
        Ok(Self { uri, name: name.to_owned(), own_queue: None, known_queues: KnownQueues::default() })
    }

    /// Adds the queue of an external consumer, which no other client declares: it exists from the first connection on.
    pub fn with_queue(self, own: Queue) -> Self {
        Self { own_queue: Some(own), ..self }
    }

    /// The queue given to [`with_queue`](Self::with_queue), if it is the one called `queue`.
    pub(crate) fn own_queue(&self, queue: &str) -> Option<Queue> {
        self.own_queue.filter(|own| own.name == queue)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn connect(&self, role: Role) -> Result<Connection, Error> {
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{} {}", self.name, role.name()).into());
        let mut uri = self.uri.clone();
        uri.query.frame_max.get_or_insert(role.frame_max());
        within(REQUEST_DEADLINE, "connect", Connection::connect_uri(uri, properties)).await
    }

    /// Opens a connection and a channel on it. Declares the topology first, so that nothing is published before every
    /// queue that should receive it exists, whichever service starts first.
    pub(crate) async fn open(&self, role: Role) -> Result<(Connection, Channel), Error> {
        let connection = self.connect(role).await?;
        let channel = open_channel(&connection).await?;
        self.declare(&channel).await?;
        Ok((connection, channel))
    }

    pub(crate) async fn declare(&self, channel: &Channel) -> Result<(), Error> {
        topology::declare(channel, self.own_queue, &self.known_queues).await
    }

    /// Connects once, at start. An unavailable broker is no error here: the tasks wait for it later.
    ///
    /// # Errors
    /// [`Fault::Setting`]: waiting will not help.
    pub async fn check(&self) -> Result<(), Error> {
        match self.open(Role::Check).await {
            Ok((connection, _)) => close(connection).await,
            Err(error @ Error::Refused(Fault::Setting, _)) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }
}

pub(crate) async fn open_channel(connection: &Connection) -> Result<Channel, Error> {
    within(REQUEST_DEADLINE, "channel.open", connection.create_channel()).await
}

/// Starts consuming a queue, with at most `prefetch` unacknowledged deliveries.
pub(crate) async fn subscribe(channel: &Channel, queue: &str, prefetch: u16) -> Result<Consumer, Error> {
    // Before consuming: otherwise the first deliveries are not limited.
    let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
    within(REQUEST_DEADLINE, "basic.qos", qos).await?;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let consume = channel.basic_consume(queue.into(), "".into(), options, arguments);
    within(REQUEST_DEADLINE, "basic.consume", consume).await
}

/// Asks how many messages wait in a queue that this process consumes. An error means that the broker or the queue is gone.
///
/// `None`: unknown. If the leader of a quorum queue does not answer within 250 ms, RabbitMQ reports no messages *and no
/// consumers*. A consumer is there, active or as a standby of one, so without any the number of messages means nothing.
pub(crate) async fn message_count(channel: &Channel, queue: &str) -> Result<Option<u32>, Error> {
    let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    let asked = channel.queue_declare(queue.into(), passive, FieldTable::default());
    let state = within(REQUEST_DEADLINE, "queue.declare", asked).await?;
    Ok((state.consumer_count() > 0).then(|| state.message_count()))
}

/// Closes a connection. An error makes no difference: what was not acknowledged returns to the broker either way.
pub(crate) async fn close(connection: Connection) {
    let _ = within(CLOSE_DEADLINE, "connection.close", connection.close(200, "bye".into())).await;
}
