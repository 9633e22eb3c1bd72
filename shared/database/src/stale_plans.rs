//! Connections whose prepared statements are for a schema that has changed since.
//!
//! A statement that was prepared before a column's type changed fails from then on, each time, on each connection that has it:
//! "cached plan must not change result type". The connection itself is healthy, so a pool would lend it for half an hour.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// When such a failure was last seen in this process.
static FOUND: Mutex<Option<Instant>> = Mutex::new(None);

/// Outdates every connection that is open now.
pub(crate) fn found() {
    *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
}

/// Whether a connection of this age was opened before the last failure.
pub(crate) fn outdate(age: Duration) -> bool {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| age > at.elapsed())
}
