//! The outbox and its relay, against a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod flat_claim;
mod operator;
mod relay_steps;
mod retention;
mod support;
mod wake_ups;
