use std::sync::atomic::{AtomicBool, Ordering};

use crate::fault::Toward;

/// Notes which of the two sockets of a connection has failed in a write.
///
/// The kernel reports a reset once, to a read or to a write. Without this note, a reset that a write has seen would
/// look like an end of file to the read of the other direction.
#[derive(Debug, Default)]
pub(crate) struct FailedSockets {
    client: AtomicBool,
    upstream: AtomicBool,
}

impl FailedSockets {
    /// Notes that a write in this direction has failed.
    pub(crate) fn note_sink(&self, toward: Toward) {
        self.sink(toward).store(true, Ordering::Relaxed);
    }

    /// Whether the socket that this direction reads from has failed in a write of the other direction.
    pub(crate) fn source_has_failed(&self, toward: Toward) -> bool {
        self.sink(toward.opposite()).load(Ordering::Relaxed)
    }

    fn sink(&self, toward: Toward) -> &AtomicBool {
        match toward {
            Toward::Upstream => &self.upstream,
            Toward::Client => &self.client,
        }
    }
}
