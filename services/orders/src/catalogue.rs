use std::collections::HashMap;

use database::Pool;

/// The products and their prices: the only source of prices. Read once at start; a price changes by a migration and a
/// restart, so that placing an order needs no look-up.
pub(crate) struct Catalogue(HashMap<String, i64>);

/// The only currency; the tables check it too.
pub(crate) const CURRENCY: &str = "EUR";

impl Catalogue {
    pub(crate) async fn read(pool: &Pool) -> Result<Self, sqlx::Error> {
        let products = sqlx::query!("select sku, unit_price from products").fetch_all(pool).await?;
        Ok(Self(products.into_iter().map(|product| (product.sku, product.unit_price)).collect()))
    }

    /// The price of one piece in cents.
    pub(crate) fn unit_price(&self, sku: &str) -> Option<i64> {
        self.0.get(sku).copied()
    }

    #[cfg(test)]
    pub(crate) fn of(products: &[(&str, i64)]) -> Self {
        Self(products.iter().map(|(sku, price)| ((*sku).to_owned(), *price)).collect())
    }
}
