//! Commit, then publish: the dual write.
//!
//! The handler writes to two systems, one after the other, and no transaction covers both. Between the two steps the order
//! exists and its event does not. A process that dies there, or an unavailable broker, loses the event for good: no other
//! process knows that there was one.

use events::OrderCreated;
use messaging::crash_points::crash_point;

use super::{WriteState, insert_order};

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    let mut transaction = state.transactions.begin().await?;
    insert_order(&mut transaction, order).await?;
    transaction.commit().await?;
    crash_point("order-written");
    if let Err(error) = state.publish(order).await {
        // The order exists, so an error would make the customer order a second time. A retry keeps the customer waiting,
        // and ends with this process. Keeping the event on disk until the broker is back is an outbox, and that has to be
        // written before the commit above.
        let error = format!("{error:#}");
        tracing::error!(order_id = %order.order_id, error, "failed to publish the event: it is lost");
    }
    Ok(())
}
