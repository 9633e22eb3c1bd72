//! Publish, then commit: the dual write the other way round.
//!
//! Nothing is lost like this, but what is published cannot be taken back. When the commit fails, or this process dies before
//! it, inventory and billing have heard of an order that does not exist: goods are put aside for nobody, and a customer
//! pays who was told that the order has failed. Without a broker there are no orders at all.

use events::OrderCreated;

use crate::shop::{Shop, insert_order};

pub(crate) async fn write(shop: &Shop, order: &OrderCreated) -> anyhow::Result<()> {
    shop.publish(order).await?;

    // Inside of the transaction, just before its commit, it would be the same: the commit is what can fail.
    let mut transaction = shop.pool.begin().await?;
    insert_order(&mut transaction, order).await?;
    transaction.commit().await?;
    Ok(())
}
