//! A worked example: a service of one's own that listens to the shop. `docs/adding-a-consumer.md` walks through it.
//!
//! It writes one mail for each end that an order comes to, and sends none: see [`WriteMails`].

mod settings;
mod write_mails;

use broker::topology::Queue;
use sqlx::migrate::Migrator;

pub use settings::{PREFIX, Settings};
pub use write_mails::{CONSUMER, WriteMails};

/// Its queue, and what it wants to hear of. The mailer is a guest: nobody but itself declares this.
pub const QUEUE: Queue = Queue { name: "mailer.events", keys: &["order.confirmed", "order.cancelled"] };

static OWN_MIGRATIONS: Migrator = sqlx::migrate!();

/// Everything that its schema is made of. It publishes nothing, so it has no outbox.
pub static MIGRATIONS: [&Migrator; 2] = [&inbox::MIGRATIONS, &OWN_MIGRATIONS];
