//! Settings that a server has in a container and as a local process alike.

/// All tests of a process share a server, and each opens its own pools: the default of 100 connections is too low.
pub(crate) const POSTGRES_MAX_CONNECTIONS: &str = "max_connections=400";

pub(crate) const RABBITMQ_USER: &str = "shop";
pub(crate) const RABBITMQ_VHOST: &str = "shop";
