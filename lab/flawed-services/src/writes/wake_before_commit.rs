//! The order and its event in one transaction, and the relay woken before its commit.
//!
//! The relay scans, does not see the event, because it is not committed, and sleeps again. No event is lost, because the
//! relay also polls, but each event waits for the next poll.

use std::time::Duration;

use events::OrderCreated;
use tokio::time::sleep;

use super::{WriteState, created_event, insert_order};

/// A relay that is woken scans within a few milliseconds. This wait lets it scan before the commit also on a busy machine,
/// so that a drill needs no luck to see the mistake.
const SCAN_TIME: Duration = Duration::from_secs(1);

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    let event = created_event(order)?;
    let mut transaction = state.transactions.begin().await?;
    insert_order(&mut transaction, order).await?;
    outbox::append(&mut transaction, &[event]).await?;
    state.product.wake.after_commit();
    sleep(SCAN_TIME).await;
    transaction.commit().await?;
    Ok(())
}
