//! Bodies of orders that the service accepts: random, and the same again from the same seed.

use serde_json::json;

/// The SKUs of the seeded catalogue. The service refuses others, and the load would measure refusals.
const SKUS: [&str; 8] =
    ["TEA-001", "TEA-002", "TEA-003", "TEA-004", "MUG-001", "MUG-002", "POT-001", "POT-002"];

/// A SKU with a stock of a hundred pieces. The order service accepts orders for it; inventory rejects most of them.
const SCARCE: &str = "POT-003";

/// The first bytes of a customer id for which the simulated payment provider declines every payment.
const WITHOUT_MONEY: u32 = 0xdec1_1ed0;

/// The kind of orders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mix {
    /// Orders that can be delivered, by customers who can pay.
    #[default]
    Good,
    /// As in a real shop: one in ten orders the scarce SKU, and one in ten is by a customer who cannot pay.
    Real,
}

/// An endless supply of valid bodies for `POST /orders`, with one to three lines of one to five pieces.
#[derive(Debug, Clone)]
pub(crate) struct OrderBodies {
    random: fastrand::Rng,
    mix: Mix,
}

impl OrderBodies {
    /// Good orders, selected by the seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), mix: Mix::Good }
    }

    /// The same, of another kind.
    #[must_use]
    pub(crate) fn mixed(self, mix: Mix) -> Self {
        Self { mix, ..self }
    }

    /// The next body, as JSON.
    pub(crate) fn next_body(&mut self) -> String {
        let mut customer = self.random.u128(..).to_le_bytes();
        let one_in_ten = if self.mix == Mix::Real { self.random.u8(..10) } else { 9 };
        if one_in_ten == 0 {
            customer[..4].copy_from_slice(&WITHOUT_MONEY.to_be_bytes());
        }
        let lines = self.random.usize(1..=3);
        // An order may name a SKU once only, so the lines are drawn without replacement.
        let mut skus = self.random.choose_multiple(SKUS, lines);
        if one_in_ten == 1 {
            skus[0] = SCARCE;
        }
        let line = |sku| json!({ "sku": sku, "quantity": self.random.u8(1..=5) });
        let lines: Vec<_> = skus.into_iter().map(line).collect();
        let customer_id = uuid::Builder::from_random_bytes(customer).into_uuid();
        json!({ "customerId": customer_id, "lines": lines }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_real_mix_has_orders_for_scarce_stock_and_customers_who_cannot_pay() {
        let mut bodies = OrderBodies::seeded(3).mixed(Mix::Real);
        let bodies: Vec<_> = (0..1000).map(|_| bodies.next_body()).collect();
        let scarce = bodies.iter().filter(|body| body.contains(SCARCE)).count();
        let poor = bodies.iter().filter(|body| body.contains(r#""customerId":"dec11ed0-"#)).count();
        assert!((50..150).contains(&scarce) && (50..150).contains(&poor), "{scarce} {poor}");
    }

    #[test]
    fn every_order_is_one_that_the_service_accepts_and_a_seed_gives_the_same_again() {
        let (mut bodies, mut again) = (OrderBodies::seeded(1), OrderBodies::seeded(1));
        for _ in 0..1000 {
            let body = bodies.next_body();
            assert_eq!(body, again.next_body());
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let lines = body["lines"].as_array().unwrap();
            assert!((1..=3).contains(&lines.len()));
            let skus: HashSet<&str> = lines.iter().map(|line| line["sku"].as_str().unwrap()).collect();
            assert_eq!(skus.len(), lines.len(), "an order may name a SKU once only: {body}");
        }
    }
}
