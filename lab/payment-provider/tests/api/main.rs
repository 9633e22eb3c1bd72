//! The payment provider as its callers see it: the built binary and a PostgreSQL database.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

mod charges;
mod faults;
mod refunds;
mod support;
