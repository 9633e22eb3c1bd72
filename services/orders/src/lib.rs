//! The order service. Reading order: `place_order`, where the promise is made; `cancel_order`, the second thing
//! that happens to an order; `relay`, where it is kept; `api`; `admin`.

pub mod admin;
pub mod api;
mod cancel_order;
mod catalogue;
mod idempotency_key;
mod order_request;
mod place_order;
mod problem;
mod read_orders;
pub mod relay;
mod request_context;
#[cfg(feature = "drill")]
mod sabotage;
mod settings;
mod shop;

pub use settings::Settings;
pub use shop::Shop;
