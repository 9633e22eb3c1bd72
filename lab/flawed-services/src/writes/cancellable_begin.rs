//! The order and its event in one transaction, begun on a connection of sqlx's own pool.
//!
//! A handler's future is dropped when its client hangs up. If that happens while the answer to `BEGIN` is on its way, sqlx
//! does not know of the transaction, and the connection returns to the pool inside it. The next request on that connection
//! writes an order with one statement: the statement succeeds, the order is acknowledged, and it is rolled back with the
//! transaction that the first request has left open.
//!
//! That takes a service in which some handlers begin transactions and others, on the same connections, do not. So orders of
//! one line are written in one statement: the product's.

use events::OrderCreated;
use orders::write_order;

use super::{WriteState, created_event, insert_order};

pub(crate) async fn write(state: &WriteState, order: &OrderCreated) -> anyhow::Result<()> {
    let event = created_event(order)?;
    if order.lines.len() == 1 {
        write_order(&state.unguarded, None, order, &event).await?;
    } else {
        // The product's pool closes the connection of an operation that was given up.
        let mut transaction = state.unguarded.begin().await?;
        insert_order(&mut transaction, order).await?;
        outbox::append(&mut transaction, &[event]).await?;
        transaction.commit().await?;
    }
    state.product.wake.after_commit();
    Ok(())
}
