//! A worked example: an external consumer of the shop's events. `docs/adding-a-consumer.md` walks through it.
//!
//! It writes one mail when an order is confirmed or cancelled, and sends none: see [`MailHandler`].

mod mail_handler;
mod settings;

use inbox::Inbox;
use rabbitmq::queues::Queue;
use service::Service;
use sqlx::migrate::Migrator;

pub use mail_handler::MailHandler;
pub use settings::Settings;

/// The mailer's queue and its bindings. No other client declares it.
pub const QUEUE: Queue = Queue { name: "mailer.events", keys: &["order.confirmed", "order.cancelled"] };

/// Each order has one mail, whatever became of its other events.
pub const INBOX: Inbox = Inbox { consumer: "mailer", queue: QUEUE.name, keeps_order: false };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!();

/// All tables of the mailer's schema. It publishes nothing, so it has no outbox.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];

pub static SERVICE: Service = Service {
    name: "mailer",
    prefix: "MAILER_",
    http_port: 8084,
    migrations: &MIGRATIONS,
    own_queue: Some(QUEUE),
};
