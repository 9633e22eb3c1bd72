//! The payment provider as its callers see it: the real binary and a real database.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod bad_requests;
mod charges;
mod faults;
mod process;
mod refunds;
mod support;
