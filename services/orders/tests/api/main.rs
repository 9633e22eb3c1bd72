//! The order service as its clients see it: the built binary, a PostgreSQL database, and no broker. Orders are accepted
//! without a broker; `lab/demo/tests` tests the services with one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

mod admin;
mod bad_requests;
mod cancellations;
mod connections;
mod documents;
mod hang_ups;
mod idempotency_keys;
mod openapi_conformance;
mod orders;
mod settings;
mod standby;
mod support;
