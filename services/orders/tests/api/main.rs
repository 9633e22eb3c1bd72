//! The order service as its clients see it: the real binary, a real database, and no broker at all. Orders are accepted
//! without one, so nothing here needs it; what happens with one is tested in `demo/tests`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod admin;
mod bad_requests;
mod cancellations;
mod documents;
mod hang_ups;
mod idempotency_keys;
mod orders;
mod promises;
mod settings;
mod support;
