//! Tests of the whole system, with real processes, servers and kills.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod delivery;
mod failed;
mod metrics;
mod order;
mod outages;
mod saga;
mod verdict;
