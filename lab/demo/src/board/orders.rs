//! The orders that a click places.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use crate::http;
use crate::running_system::RunningSystem;

use super::load::BoardLoad;

/// An order that was placed.
#[derive(Debug, Serialize)]
pub(crate) struct Placed {
    id: Uuid,
    milliseconds: f64,
}

/// Places an order that can be confirmed.
pub(crate) async fn place(system: &RunningSystem, load: &BoardLoad) -> Result<Placed> {
    let body = json!({
        "customerId": Uuid::new_v4(),
        "lines": [{ "sku": "TEA-001", "quantity": 2 }, { "sku": "MUG-001", "quantity": 1 }],
    });
    let sent = std::time::Instant::now();
    let id = http::place(http::order_request(system.orders_url(), &body)?).await?;
    load.record(id);
    Ok(Placed { id, milliseconds: sent.elapsed().as_secs_f64() * 1e3 })
}
