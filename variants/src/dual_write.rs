//! Commit, then publish: the dual write.
//!
//! Two systems are written to, one after the other, and nothing makes them one. Between the two lines below the order
//! exists and its event does not. A process that dies there, or a broker that is away, loses the event for good: no other
//! process knows that there was one.

use events::OrderCreated;

use crate::shop::{Shop, insert_order};

pub(crate) async fn write(shop: &Shop, order: &OrderCreated) -> anyhow::Result<()> {
    let mut transaction = shop.pool.begin().await?;
    insert_order(&mut transaction, order).await?;
    transaction.commit().await?;

    if let Err(cause) = shop.publish(order).await {
        // What now? The order is there: an error would have the customer order a second time. Trying again keeps them
        // waiting, and is over when this process is. To keep the event somewhere safe until the broker is back: that is an
        // outbox, and it has to be written before the commit above.
        tracing::error!(order_id = %order.order_id, cause = format!("{cause:#}"), "the event is lost");
    }
    Ok(())
}
