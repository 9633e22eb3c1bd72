//! The order service. Reading order: `place_order`, where the promise is made; `order_state`, what can become of an
//! order; `follow_orders`, where the answers of the other services move it; `cancel_order` and `open_orders`, who else
//! may; `api`.

pub mod api;
mod cancel_order;
mod catalogue;
pub mod documents;
mod follow_orders;
pub mod idempotency_key;
pub mod open_orders;
mod order_request;
pub mod order_state;
mod place_order;
mod problem;
mod read_orders;
mod refusals;
mod request_context;
#[cfg(feature = "drill")]
mod sabotage;
mod settings;
mod shop;

pub use follow_orders::{CONSUMER, FollowOrders};
pub use settings::{PREFIX, Settings};
pub use shop::Shop;
