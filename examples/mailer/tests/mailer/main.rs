//! The mailer, against a real PostgreSQL and a real RabbitMQ: one mail, whatever happens.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod at_least_once;
mod beside_the_shop;
mod events_that_arrive;
mod process;
mod room;
