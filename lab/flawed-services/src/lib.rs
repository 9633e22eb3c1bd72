//! Services that are wrong on purpose, to see that the checks notice. The table of `lab/flaws` says what each flaw is.
//!
//! `orders-lab`, `inventory-lab` and `billing-lab` replace one whole part of a service (a [`publisher`], a [`store`], a
//! [`handler`], a payment [`provider`]) by one that delegates to the product's part, except for the step
//! that it leaves out. `SABOTAGE` names the flaw; without it they are the services as they are. `orders-variant` writes orders
//! (`writes`) or publishes events (`relays`) as it is often done: `VARIANT` names the way. `outbox-relay-lab` is the judge's
//! entrant `ours` with a flaw.
//!
//! These programs are also the only ones that arm crash points: see [`crash`].

mod cancels;
pub mod crash;
mod entrant;
pub mod handler;
mod log_store;
mod parts;
pub mod provider;
pub mod publisher;
mod relays;
pub mod row_locks;
pub mod store;
mod writes;

pub use entrant::run_relay;
pub use parts::{FlawedParts, run_orders};
