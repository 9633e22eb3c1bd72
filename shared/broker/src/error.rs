use std::{future::Future, time::Duration};

use lapin::{ErrorKind, protocol::AMQPErrorKind};
use tokio::time::timeout;

/// How long one request to the broker may take. lapin has no time-out of its own: connecting to a server that accepts
/// and stays silent would hang for ever.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(3);

/// A failed request to the broker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not an AMQP URL: {0}")]
    Url(String),
    /// The broker refuses: credentials, virtual host, permissions, or a queue that exists with other arguments. Waiting
    /// does not help; a setting has to change.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// The broker did not answer in time.
    #[error("no answer within {0:?} to {1}")]
    Silent(Duration, &'static str),
    /// The broker has ended the subscription: the queue was deleted, or a message was held for longer than its consumer
    /// time-out.
    #[error("the broker cancelled the subscription")]
    Cancelled,
    /// The handler cannot work, so its consumer takes no messages.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The dead-letter collector holds so many that its store refuses.
    #[error("{0} dead letters cannot be saved")]
    Unsaved(u16),
    /// The broker cannot be reached, or the connection broke.
    #[error(transparent)]
    Lost(lapin::Error),
}

impl From<lapin::Error> for Error {
    fn from(error: lapin::Error) -> Self {
        use lapin::protocol::{AMQPHardError::NOTALLOWED, AMQPSoftError::*};
        if let ErrorKind::ProtocolError(refusal) = error.kind() {
            let text = refusal.get_message().as_str();
            let is_setting = match refusal.kind() {
                AMQPErrorKind::Soft(kind) => matches!(kind, ACCESSREFUSED | PRECONDITIONFAILED),
                // The broker gives this reply for a virtual host that does not exist, and also for a limit of connections
                // and for a virtual host that it has not started yet: those end by themselves.
                AMQPErrorKind::Hard(kind) => {
                    matches!(kind, NOTALLOWED) && !text.contains("limit") && !text.contains("is down")
                }
            };
            if is_setting {
                return Self::Refused(refusal.get_message().to_string());
            }
        }
        Self::Lost(error)
    }
}

/// Sends a request to the broker with a deadline. `what` names it in the error.
pub(crate) async fn within<T>(
    deadline: Duration,
    what: &'static str,
    request: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, Error> {
    match timeout(deadline, request).await {
        Ok(answer) => answer.map_err(Error::from),
        Err(_) => Err(Error::Silent(deadline, what)),
    }
}
