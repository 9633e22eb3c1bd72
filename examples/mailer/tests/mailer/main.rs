//! The mailer, with PostgreSQL and RabbitMQ: each end of an order is one mail, whatever fails meanwhile.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

mod at_least_once;
mod handler;
mod process;
mod support;
mod with_the_services;
