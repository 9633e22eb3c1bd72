use std::{future::Future, time::Duration};

use messaging::{BrokerUnavailable, settle::Interruption};
use tokio::time::timeout;

use crate::replies::{Fault, reply};

/// How long one request to the broker may take. lapin has no time-out of its own: connecting to a server that accepts
/// and stays silent would hang for ever.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(3);

/// A failed request to the broker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not an AMQP URL: {0}")]
    Url(String),
    /// The broker refuses, and waiting alone does not help.
    #[error("the broker refuses: {1}")]
    Refused(Fault, String),
    /// The broker did not answer in time.
    #[error("no answer within {0:?} to {1}")]
    Silent(Duration, &'static str),
    /// The broker has ended the subscription: the queue was deleted, or a message was held for longer than its consumer
    /// time-out.
    #[error("the broker cancelled the subscription")]
    Cancelled,
    /// Messages were received and not settled.
    #[error(transparent)]
    Interrupted(#[from] Interruption),
    /// An alarm (memory, disk) keeps the broker from reading what this client sends.
    #[error("blocked by an alarm")]
    Blocked,
    /// The broker cannot be reached, or the connection broke.
    #[error(transparent)]
    Lost(lapin::Error),
}

impl From<lapin::Error> for Error {
    fn from(error: lapin::Error) -> Self {
        match reply(&error) {
            Some((fault, text)) if fault != Fault::Server => Self::Refused(fault, text.to_owned()),
            _ => Self::Lost(error),
        }
    }
}

impl From<Error> for BrokerUnavailable {
    fn from(error: Error) -> Self {
        Self(error.to_string())
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
