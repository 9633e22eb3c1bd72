//! The product's relay: `outbox-relay` relays, `outbox-relay set-up` creates the tables.

use messaging::RelayOptions;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    outbox_relay::run(|pool, publisher, wake, stop| {
        outbox::relay(pool, publisher, RelayOptions::default()).run(wake, stop)
    })
    .await
}
