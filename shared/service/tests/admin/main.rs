//! The functions behind the admin API, against a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod dead_letters;
mod parked_events;
mod support;
