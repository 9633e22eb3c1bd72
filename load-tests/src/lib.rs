//! Load on `POST /orders`, of two kinds that answer two questions.
//!
//! [`run`] is *open loop*: requests are due at constant intervals, and no request waits for an earlier one, as with
//! real customers, who do not know of each other. It answers "how long does an order take at 100 a second?", and it
//! goes on while a drill breaks things. [`saturate`] is *closed loop*: each of a fixed number of connections sends its
//! next request when the last one is answered. It answers "how many orders a second at most?", and its latencies say
//! nothing about a given rate.

mod client;
mod open_loop;
mod order_bodies;
mod saturation;
mod summary;

pub use client::Client;
pub use open_loop::{Load, run};
pub use order_bodies::Mix;
pub use saturation::{Saturation, saturate};
pub use summary::{Answer, Latency, Outcome, Summary};

/// How long one request may take, from when it is sent.
///
/// No later answer is of use to a customer, and a service that does not answer delays the end of a run by no more.
const REQUEST_DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
