//! Publish, then commit: the dual write in the other order.
//!
//! No event is lost like this, but a published event cannot be withdrawn. When the commit fails, or this process dies before
//! it, inventory and billing have received an order that does not exist: stock is reserved for it, and a customer is charged
//! who was told that the order has failed. Without a broker no orders are accepted at all.

use events::OrderCreated;
use messaging::crash_points::crash_point;

use super::{WriteState, insert_order};

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    state.publish(order).await?;
    crash_point("order-unwritten");

    // Publishing inside the transaction, just before its commit, would be the same: the commit is what can fail.
    let mut transaction = state.transactions.begin().await?;
    insert_order(&mut transaction, order).await?;
    transaction.commit().await?;
    Ok(())
}
