//! The product's relay without a service, with one part replaced: the judge must notice.

use flaws::{Flaw, LeftOut};
use messaging::{Relay, RelayOptions};
use outbox::PostgresStore;

use crate::{
    parts::named,
    publisher::FlawedPublisher,
    row_locks::{OncePublished, RowLockStore},
    store::FlawedStore,
};

/// Reads `RELAY_MISTAKE`, and relays until SIGTERM.
pub async fn run_relay() -> anyhow::Result<()> {
    let name = std::env::var("RELAY_MISTAKE").unwrap_or_default();
    let flaw = named("RELAY_MISTAKE", &name, LeftOut::Part);
    outbox_relay::run(move |pool, publisher, wake, stop| async move {
        let options = RelayOptions::default();
        if flaw == Flaw::SkipLockedOnRows {
            let store = RowLockStore::new(pool, OncePublished::Mark);
            return Relay::new(store, publisher, options).run(wake, stop).await;
        }
        let store = FlawedStore::new(PostgresStore::new(pool, options.full_scan), Some(flaw));
        Relay::new(store, FlawedPublisher::new(publisher, Some(flaw)), options).run(wake, stop).await;
    })
    .await
}
