//! Services that are wrong on purpose, to see that the checks notice. The table of `lab/flaws` says what each flaw is.
//!
//! `orders-lab`, `inventory-lab` and `billing-lab` replace one whole part of a service (a [`publisher`], a [`store`] or a
//! [`handler`]) by one that is written as it is often written wrong. What the product only lacks a protection for is not here: a
//! diff in `lab/without` takes that out of the product. `SABOTAGE` names the flaw; without it they are the services as they are. `orders-variant` writes orders
//! (`writes`) or publishes events (`relays`) as it is often done: `VARIANT` names the way. `outbox-relay-lab` is the judge's
//! entrant `ours` with a flaw.
//!
//! These programs are also the only ones that arm crash points: see [`crash`].

pub mod crash;
mod entrant;
pub mod handler;
mod parts;
pub mod publisher;
mod relays;
pub mod row_locks;
pub mod store;
mod writes;

pub use entrant::run_relay;
pub use parts::{FlawedParts, run_orders};
