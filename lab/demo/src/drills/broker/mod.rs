//! What happens to RabbitMQ.

pub(super) mod freeze;
pub(super) mod kill;
pub(super) mod operator;
pub(super) mod refuse;
