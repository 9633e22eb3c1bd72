use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::timeout};

use crate::fault::Toward;

/// What a route has done since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Connections that are open now.
    pub open: usize,
    /// Connections that were accepted and not refused.
    pub total: u64,
    /// Connections that were reset at once: by a cut, or above the limit of the route.
    pub refused: u64,
    /// Accepted connections whose connection to the upstream failed.
    pub connect_failures: u64,
    /// Bytes that were forwarded.
    pub bytes_to_upstream: u64,
    pub bytes_to_client: u64,
    /// Connections that a fault has reset. A reset that a peer sent is passed on and not counted.
    pub resets: u64,
}

/// The counters of one route, and the wake-up for tasks that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Counters(watch::Sender<Stats>);

impl Counters {
    pub(crate) fn now(&self) -> Stats {
        *self.0.borrow()
    }

    pub(crate) async fn until(
        &self,
        deadline: Duration,
        condition: impl FnMut(&Stats) -> bool,
    ) -> Result<Stats, Stats> {
        let mut changes = self.0.subscribe();
        match timeout(deadline, changes.wait_for(condition)).await {
            Ok(Ok(stats)) => Ok(*stats),
            Ok(Err(_)) | Err(_) => Err(self.now()),
        }
    }

    /// Counts a connection as open, unless `max` are open already.
    pub(crate) fn open(&self, max: usize) -> bool {
        self.0.send_if_modified(|stats| {
            let has_room = stats.open < max;
            if has_room {
                stats.open += 1;
                stats.total += 1;
            }
            has_room
        })
    }

    pub(crate) fn closed(&self) {
        self.0.send_modify(|stats| stats.open -= 1);
    }

    pub(crate) fn refused(&self) {
        self.0.send_modify(|stats| stats.refused += 1);
    }

    pub(crate) fn connect_failed(&self) {
        self.0.send_modify(|stats| stats.connect_failures += 1);
    }

    pub(crate) fn forwarded(&self, toward: Toward, bytes: usize) {
        self.0.send_modify(|stats| match toward {
            Toward::Upstream => stats.bytes_to_upstream += bytes as u64,
            Toward::Client => stats.bytes_to_client += bytes as u64,
        });
    }

    pub(crate) fn reset(&self) {
        self.0.send_modify(|stats| stats.resets += 1);
    }
}
