//! The publisher, the consumer and the dead-letter collector, against a real RabbitMQ.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod collecting;
mod consuming;
mod cut_connections;
mod external_consumers;
mod odd_messages;
mod protections;
mod publishing;
mod redelivery;
mod scripted_handler;
mod scripted_store;
mod setting_aside;
mod stalls;
mod support;
