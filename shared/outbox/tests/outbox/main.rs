//! The outbox and its relay, against a real PostgreSQL and a scripted broker.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod log_relay;
mod parked_events;
mod relay_steps;
mod retention;
mod scans;
mod standby;
mod support;
mod wake_ups;
