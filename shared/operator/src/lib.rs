//! The admin API: what an operator can do about events that were not published or not applied.
//!
//! - [`parked_events`]: events of this service's outbox that the broker refused too often; and published events that are
//!   to be published again.
//! - [`dead_letters`]: messages that this service could not apply.
//! - [`AdminServer`]: serves both on an address of their own, behind a token. [`outbox_routes`], [`dead_letter_routes`].
//!
//! The functions are public so that tests can call them without HTTP. `docs/http.md` is the reference of the routes.

pub mod dead_letters;
pub mod parked_events;
mod request;
mod routes;
mod server;

pub use request::{Note, Page, Params, ReplayPolicy, Selection};
pub use routes::{dead_letter_routes, outbox_routes};
pub use server::{AdminServer, Token};
