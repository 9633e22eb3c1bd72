//! The publisher and the consumer, against a real RabbitMQ.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

mod collecting;
mod consuming;
mod cut_connections;
mod guests;
mod publishing;
mod support;
