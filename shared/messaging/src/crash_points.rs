//! Crash points: named places where a crash is interesting.
//!
//! [`crash_point`] tells a reader where an order of steps matters. It is in every build and costs one relaxed load. Only the
//! lab's programs call [`arm`], which decides what happens there: the process kills, freezes or stops itself. A test looks
//! into the product's binaries and finds no such call.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

type Hook = Box<dyn Fn(&'static str) + Send + Sync>;

static ARMED: AtomicBool = AtomicBool::new(false);
static HOOK: OnceLock<Hook> = OnceLock::new();

/// Every crash point, in the order in which an event passes them. A test compares this list with the sources.
pub const ALL: [&str; 16] = [
    // orders: the request is read and priced, nothing is written; the order and its event are committed.
    "order-unwritten",
    "order-written",
    // outbox: lanes are locked and events read; confirmed, not marked; marked and committed.
    "relay-claimed",
    "batch-half-sent",
    "batch-sent",
    "relay-confirmed",
    "relay-committed",
    // broker and inbox: a group of deliveries is received; recorded as processed; its effects written; committed;
    // acknowledged.
    "group-received",
    "inbox-recorded",
    "effect-written",
    "effect-committed",
    "group-acknowledged",
    // billing: the payment provider is about to be called; it has answered and nothing is written.
    "payment-unasked",
    "payment-answered",
    // broker: a message is saved as a dead letter, not acknowledged; one from the dead-letter queue is saved, not
    // acknowledged.
    "dead-letter-saved",
    "dead-letter-collected",
];

/// Marks a place where a crash is interesting. Does nothing unless a lab program has called [`arm`].
#[inline]
pub fn crash_point(name: &'static str) {
    if ARMED.load(Ordering::Relaxed)
        && let Some(hook) = HOOK.get()
    {
        hook(name);
    }
}

/// Calls `hook` at every crash point from now on. For lab programs only; the first call wins.
pub fn arm(hook: impl Fn(&'static str) + Send + Sync + 'static) {
    if HOOK.set(Box::new(hook)).is_ok() {
        ARMED.store(true, Ordering::Relaxed);
    }
}
