//! The product's relay: `outbox-relay` relays, `outbox-relay set-up` creates the tables.

use outbox::{Relay, RelayOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    outbox_relay::run(|pool, publisher, wake, stop| {
        Relay::new(pool, publisher, RelayOptions::default()).run(wake, stop)
    })
    .await
}
