use std::collections::HashSet;

use events::{Line, OrderCreated};
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{catalogue::Catalogue, problem::Problem};

/// The body of `POST /orders`, as it comes in. Unknown fields are refused: a client that sends `total` or `status`
/// believes that it decides them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OrderRequest {
    /// Who orders. Not the nil UUID.
    customer_id: Uuid,
    /// What is ordered: each SKU once.
    #[schema(min_items = 1, max_items = 100)]
    lines: Vec<RequestedLine>,
}

/// So many of one product.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestedLine {
    /// Stock keeping unit: a product of the catalogue.
    sku: String,
    /// How many pieces.
    #[schema(minimum = 1, maximum = 1000)]
    quantity: i64,
}

/// The most lines that an order may have, and the most pieces of one product. The numbers above are for the document, and
/// a test holds them to these.
pub(crate) const MOST_LINES: usize = 100;
const MOST_PIECES: i64 = 1000;

/// An order that can be accepted: priced, added up, and within all limits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PricedOrder {
    pub(crate) customer_id: Uuid,
    pub(crate) lines: Vec<Line>,
    /// In cents.
    pub(crate) total: i64,
}

impl OrderRequest {
    /// Checks everything that the types cannot, and adds the prices. The first thing that is wrong is the answer.
    pub(crate) fn price(self, catalogue: &Catalogue) -> Result<PricedOrder, Problem> {
        if self.customer_id.is_nil() {
            return Err(Problem::invalid("customerId is the nil UUID"));
        }
        if self.lines.is_empty() || self.lines.len() > MOST_LINES {
            return Err(Problem::invalid(format!("an order has 1 to {MOST_LINES} lines")));
        }
        let mut seen = HashSet::new();
        let mut lines = Vec::with_capacity(self.lines.len());
        for (index, requested) in self.lines.into_iter().enumerate() {
            let quantity = i32::try_from(requested.quantity).unwrap_or(0);
            if !(1..=MOST_PIECES).contains(&i64::from(quantity)) {
                return Err(Problem::invalid(format!("lines[{index}].quantity is 1 to {MOST_PIECES}")));
            }
            let Some(unit_price) = catalogue.unit_price(&requested.sku) else {
                return Err(Problem::unknown_sku(index));
            };
            if !seen.insert(requested.sku.clone()) {
                return Err(Problem::invalid(format!(
                    "lines[{index}].sku stands in an earlier line already; add up the quantities"
                )));
            }
            lines.push(Line { sku: requested.sku, quantity, unit_price });
        }
        // Cannot overflow within these limits. Checked all the same: prices are data, and may grow.
        let total = OrderCreated::sum(&lines).ok_or_else(|| Problem::invalid("the total is too large"))?;
        Ok(PricedOrder { customer_id: self.customer_id, lines, total })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn price(lines: &[(&str, i64)]) -> Result<PricedOrder, Problem> {
        let catalogue = Catalogue::of(&[("TEA-001", 625), ("MUG-001", 1450), ("GOLD", i64::MAX / 10)]);
        let lines =
            lines.iter().map(|(sku, quantity)| RequestedLine { sku: (*sku).into(), quantity: *quantity });
        OrderRequest { customer_id: Uuid::new_v4(), lines: lines.collect() }.price(&catalogue)
    }

    #[test]
    fn the_total_is_the_sum_of_our_own_prices() {
        let order = price(&[("TEA-001", 2), ("MUG-001", 1)]).unwrap();
        assert_eq!(order.total, 2 * 625 + 1450);
    }

    #[test]
    fn a_sum_that_does_not_fit_is_refused_instead_of_wrapped() {
        assert!(price(&[("GOLD", 1000)]).is_err());
    }

    #[test]
    fn the_limits_in_the_document_are_those_that_are_checked() {
        let document = serde_json::to_value(crate::api::openapi()).unwrap();
        let schemas = &document["components"]["schemas"];
        let lines = &schemas["OrderRequest"]["properties"]["lines"];
        assert_eq!((&lines["minItems"], &lines["maxItems"]), (&json!(1), &json!(MOST_LINES)));
        let quantity = &schemas["RequestedLine"]["properties"]["quantity"];
        assert_eq!((&quantity["minimum"], &quantity["maximum"]), (&json!(1), &json!(MOST_PIECES)));
    }

    #[test]
    fn the_limits_are_what_they_say() {
        assert!(price(&[("TEA-001", 1000)]).is_ok());
        for quantity in [0, -1, 1001, 1 << 31, 1 << 32, (1 << 32) + 1, i64::MAX, i64::MIN] {
            assert!(price(&[("TEA-001", quantity)]).is_err(), "{quantity} was accepted");
        }
        assert!(price(&[]).is_err());
        assert!(price(&[("TEA-001", 1), ("TEA-001", 1)]).is_err());
        assert!(price(&[("COFFEE", 1)]).is_err());
    }
}
