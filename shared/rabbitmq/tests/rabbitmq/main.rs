//! The publisher, the consumer and the dead-letter collector, against a real RabbitMQ.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod cluster;
mod collecting;
mod consuming;
mod partitions;
mod protections;
mod proxy;
mod publishing;
mod redelivery;
mod scripted;
mod setting_aside;
mod stalls;
mod support;
mod trust;
