//! Ports for servers that are killed and come back on the same one.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

/// Below 32768 on purpose: the range above it is where the kernel takes the local ports of outgoing connections. A
/// server that is down for a moment would find its port taken by some client.
const RANGE: std::ops::Range<u16> = 20_000..32_768;

/// Handed out by this process and never again, so that two servers that start together do not get the same one.
static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Whether nothing listens on this port of the loopback address.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// A loopback port that is free now, outside the range of outgoing connections, and not handed out twice by this
/// process.
pub fn free_port() -> Result<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = taken.get_or_insert_default();
    (0..1_000)
        .map(|_| fastrand::u16(RANGE))
        .find(|&port| is_free(port) && taken.insert(port))
        .with_context(|| format!("no free port found between {} and {}", RANGE.start, RANGE.end))
}
