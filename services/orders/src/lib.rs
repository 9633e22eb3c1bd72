//! The order service. Reading order: `place_order`, the order and its event in one statement; `order_state`, the life of
//! an order; `order_handler`, where the answers of the other services move it; `cancel_order` and `open_orders`, the other
//! ways to an end; `api`.

pub mod api;
mod api_docs;
mod app_state;
mod cancel_order;
mod catalogue;
pub mod idempotency_key;
pub mod open_orders;
mod order_handler;
mod order_request;
pub mod order_state;
mod order_view;
mod place_order;
mod problem_responses;
mod problems;
mod read_orders;
mod request_context;
mod settings;

use broker::topology;
use service::{Service, Subscription};
use sqlx::migrate::Migrator;

pub use api_docs::pretty;
pub use app_state::AppState;
pub use order_handler::OrderHandler;
pub use settings::Settings;

/// The name under which this consumer's events are recorded.
pub const CONSUMER: &str = "orders";

pub const SUBSCRIPTION: Subscription = Subscription { queue: topology::ORDERS, consumer: CONSUMER };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/orders");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service =
    Service { name: "orders", prefix: "ORDERS_", http_port: 8080, migrations: &MIGRATIONS, own_queue: None };
