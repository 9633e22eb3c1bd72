//! Ports for servers that are killed and restarted on the same port.

use std::collections::HashSet;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

/// Below 32768, where the kernel takes the local ports of outgoing connections from. In that range a client could take
/// the port of a server that is down for a moment.
const RANGE: Range<u16> = 20_000..32_768;

/// The ports that this process has returned. None is returned twice, so that two servers that start at the same time
/// do not get the same port.
static RETURNED: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Whether no program listens on this port of the loopback address.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Returns a loopback port that is free now. It is outside the range of outgoing connections, and this process gets
/// each port only once.
pub fn free_port() -> Result<u16> {
    let mut returned = RETURNED.lock().unwrap_or_else(PoisonError::into_inner);
    let returned = returned.get_or_insert_default();
    (0..1_000)
        .map(|_| fastrand::u16(RANGE))
        .find(|&port| is_free(port) && returned.insert(port))
        .with_context(|| format!("failed to find a free port between {} and {}", RANGE.start, RANGE.end))
}
