//! The publisher, the consumer and the dead-letter collector, against a real RabbitMQ.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod collecting;
mod consuming;
mod cut_connections;
mod external_consumers;
mod publishing;
mod scripted_handler;
mod stalls;
mod support;
