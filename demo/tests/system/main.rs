//! The whole system: real processes, real servers, real kills. What each test proves is in its name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod aside;
mod delivery;
mod order;
mod outages;
mod saga;
mod stops;
