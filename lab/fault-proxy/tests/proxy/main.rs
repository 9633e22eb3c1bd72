//! The proxy between real sockets, in one process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod addresses;
mod black_hole;
mod control;
mod cut;
mod delay;
mod forwarding;
mod limits;
mod pattern;
mod reset_after;
mod shutdown;
mod support;
mod trickle;
