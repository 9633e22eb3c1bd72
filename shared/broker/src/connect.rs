use std::{future::Future, time::Duration};

use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, protocol::AMQPErrorKind, uri::AMQPUri};
use tokio::time::timeout;

use crate::topology::{self, Queue};

/// How long any single request to the broker may take. lapin has no time-out of its own: connecting to a server that
/// accepts and stays silent would hang for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// Seconds between heartbeats. A peer is given up after two missed ones; with RabbitMQ's default of 60 s that would be
/// two minutes, and below 5 s a busy machine gives false alarms.
const HEARTBEAT: u16 = 5;

/// Where the broker is, and as whom to talk to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    uri: AMQPUri,
    name: String,
    own: Option<Queue>,
}

/// What can go wrong with the broker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is not one.
    #[error("not an AMQP URL: {0}")]
    Url(String),
    /// The broker answered, and will not have us: credentials, virtual host, permissions, or a queue that exists with
    /// other arguments. Waiting does not help; somebody has to change a setting.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// The broker did not answer in time.
    #[error("no answer within {0:?} to {1}")]
    Silent(Duration, &'static str),
    /// The broker cannot be reached, or the connection broke.
    #[error(transparent)]
    Lost(lapin::Error),
}

impl From<lapin::Error> for Error {
    fn from(error: lapin::Error) -> Self {
        use lapin::protocol::{AMQPHardError::NOTALLOWED, AMQPSoftError::*};
        if let ErrorKind::ProtocolError(refusal) = error.kind() {
            let setting = match refusal.kind() {
                AMQPErrorKind::Soft(kind) => matches!(kind, ACCESSREFUSED | PRECONDITIONFAILED),
                AMQPErrorKind::Hard(kind) => matches!(kind, NOTALLOWED),
            };
            if setting {
                return Self::Refused(refusal.get_message().to_string());
            }
        }
        Self::Lost(error)
    }
}

/// A request to the broker, with the deadline that it lacks.
pub(crate) async fn within<T>(
    patience: Duration,
    what: &'static str,
    request: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, Error> {
    match timeout(patience, request).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::Silent(patience, what)),
    }
}

impl Endpoint {
    /// Reads `amqp://user:password@host:port/vhost`. `name` is who we are: what the
    /// broker's management pages show, and the sender of our messages.
    ///
    /// # Errors
    /// When the URL is not one, or names no virtual host: a trailing slash would mean the one with the empty name.
    pub fn new(url: &str, name: &str) -> Result<Self, Error> {
        let mut uri: AMQPUri = url.parse().map_err(Error::Url)?;
        if uri.vhost.is_empty() {
            return Err(Error::Url("it ends in a slash, which names a virtual host without a name".into()));
        }
        uri.query.heartbeat = Some(HEARTBEAT);
        Ok(Self { uri, name: name.to_owned(), own: None })
    }

    /// For a guest, whose queue nobody but itself declares: it is there from our first connection on.
    pub fn with_queue(self, own: Queue) -> Self {
        Self { own: Some(own), ..self }
    }

    /// The queue that we brought along, if it is the one called `queue`.
    pub(crate) fn own(&self, queue: &str) -> Option<Queue> {
        self.own.filter(|own| own.name == queue)
    }

    /// Who we are: the `app_id` of what we publish.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Opens a connection and a channel on it. The topology is declared first, so that nothing is published before
    /// every queue that should get it exists, whoever comes up first.
    pub(crate) async fn open(&self, role: &str) -> Result<(Connection, Channel), Error> {
        let properties =
            ConnectionProperties::default().with_connection_name(format!("{} {role}", self.name).into());
        let connection =
            within(PATIENCE, "connect", Connection::connect_uri(self.uri.clone(), properties)).await?;
        let channel = within(PATIENCE, "channel.open", connection.create_channel()).await?;
        self.declare(&channel).await?;
        Ok((connection, channel))
    }

    /// Declares all that we know of.
    pub(crate) async fn declare(&self, channel: &Channel) -> Result<(), Error> {
        topology::declare(channel, self.own).await
    }

    /// Tries the connection once, at start. A broker that is away is no error here: it is waited for later.
    ///
    /// # Errors
    /// [`Error::Refused`]: a setting is wrong, and no waiting will mend it.
    pub async fn check(&self) -> Result<(), Error> {
        match self.open("check").await {
            Ok((connection, _)) => close(connection).await,
            Err(error @ (Error::Refused(_) | Error::Url(_))) => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }
}

/// Says goodbye, if the broker is still listening.
pub(crate) async fn close(connection: Connection) {
    // Whether it answers makes no difference any more: what was not acknowledged is the broker's again either way.
    let _ = within(Duration::from_secs(1), "connection.close", connection.close(200, "bye".into())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_cannot_work_is_refused_before_anything_is_dialled() {
        for url in ["", "hello", "http://localhost:5672/shop", "amqp://localhost:5672/"] {
            assert!(Endpoint::new(url, "test").is_err(), "{url:?} was accepted");
        }
        assert!(Endpoint::new("amqp://shop:p%40ss@localhost:5672/shop", "test").is_ok());
    }
}
