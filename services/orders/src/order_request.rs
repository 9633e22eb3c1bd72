use std::collections::{HashMap, HashSet};

use events::{Line, Money, OrderCreated};
use serde::Deserialize;
use service::problem::Problem;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::problems;

/// The price of one piece of each product, by its SKU, in cents.
pub(crate) type Prices = HashMap<String, i64>;

/// The only currency; the tables check it too.
const CURRENCY: &str = "EUR";

/// The body of `POST /orders`. Unknown fields are refused: a client that sends `total` or `status` believes that it
/// decides them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OrderRequest {
    /// The customer. Not the nil UUID.
    #[serde(deserialize_with = "uuid::serde::hyphenated::deserialize")]
    customer_id: Uuid,
    /// The lines: each SKU once.
    #[schema(min_items = 1, max_items = 100)]
    lines: Vec<RequestedLine>,
}

/// A quantity of one product.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestedLine {
    /// Stock keeping unit: a product of the catalogue.
    sku: String,
    /// How many pieces.
    #[schema(minimum = 1, maximum = 1000)]
    quantity: i64,
}

/// The limits of an order. The numbers above are for the OpenAPI document; `documented_limits_are_those_that_are_checked` compares them.
pub(crate) const MAX_LINES: usize = 100;
const MAX_QUANTITY: i64 = 1000;

impl OrderRequest {
    /// Checks what the types cannot express, and adds the prices: the order that can be accepted, under a new id.
    pub(crate) fn price(self, prices: &Prices) -> Result<OrderCreated, Problem> {
        if self.customer_id.is_nil() {
            return Err(problems::invalid_order("customerId is the nil UUID"));
        }
        if self.lines.is_empty() || self.lines.len() > MAX_LINES {
            return Err(problems::invalid_order(format!("an order has 1 to {MAX_LINES} lines")));
        }
        let mut seen = HashSet::new();
        let mut lines = Vec::with_capacity(self.lines.len());
        for (index, requested) in self.lines.into_iter().enumerate() {
            let quantity = i32::try_from(requested.quantity).unwrap_or(0);
            if !(1..=MAX_QUANTITY).contains(&i64::from(quantity)) {
                return Err(problems::invalid_order(format!(
                    "lines[{index}].quantity is 1 to {MAX_QUANTITY}"
                )));
            }
            let unit_price = *prices.get(&requested.sku).ok_or_else(|| problems::unknown_sku(index))?;
            if !seen.insert(requested.sku.clone()) {
                return Err(problems::invalid_order(format!(
                    "lines[{index}].sku is in an earlier line already; add up the quantities"
                )));
            }
            lines.push(Line { sku: requested.sku, quantity, unit_price });
        }
        // Cannot overflow within these limits. Checked all the same, because prices are data and may grow.
        let amount =
            OrderCreated::sum(&lines).ok_or_else(|| problems::invalid_order("the total is too large"))?;
        let total = Money { amount, currency: CURRENCY.into() };
        Ok(OrderCreated { order_id: Uuid::now_v7(), customer_id: self.customer_id, lines, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(lines: &[(&str, i64)]) -> Result<OrderCreated, Problem> {
        let prices = [("TEA-001", 625), ("MUG-001", 1450), ("GOLD", i64::MAX / 10)];
        let prices = prices.map(|(sku, price)| (sku.to_owned(), price)).into();
        let lines =
            lines.iter().map(|(sku, quantity)| RequestedLine { sku: (*sku).into(), quantity: *quantity });
        OrderRequest { customer_id: Uuid::new_v4(), lines: lines.collect() }.price(&prices)
    }

    #[test]
    fn the_total_is_the_sum_of_our_own_prices() {
        let order = price(&[("TEA-001", 2), ("MUG-001", 1)]).unwrap();
        assert_eq!(order.total.amount, 2 * 625 + 1450);
    }

    #[test]
    fn a_sum_that_does_not_fit_is_refused_instead_of_wrapped() {
        assert!(price(&[("GOLD", 1000)]).is_err());
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
