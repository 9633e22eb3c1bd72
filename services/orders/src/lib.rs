//! The order service. Reading order: `place_order`, the order and its event in one statement; `order_state`, the life of
//! an order; `order_handler`, where the answers of the other services move it; `cancel_order` and `open_orders`, the other
//! ways to an end; `api`.

pub mod api;
mod app_state;
mod cancel_order;
pub mod idempotency_key;
pub mod open_orders;
mod order_handler;
mod order_request;
pub mod order_state;
mod place_order;
mod problems;
mod read_orders;
mod run;

use inbox::Inbox;
use rabbitmq::topology;
use service::Service;
use sqlx::migrate::Migrator;

pub use api::pretty;
pub use app_state::AppState;
pub use order_handler::OrderHandler;
pub use run::{Settings, run};

/// Events may be applied in any order: `order_state` allows each answer only from the states that it can follow.
pub const INBOX: Inbox = Inbox { consumer: "orders", queue: topology::ORDERS, keeps_order: false };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/orders");

/// All tables of the service's schema.
pub static MIGRATIONS: [&Migrator; 3] = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service =
    Service { name: "orders", prefix: "ORDERS_", http_port: 8080, migrations: &MIGRATIONS, own_queue: None };
