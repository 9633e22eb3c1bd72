use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use database::{Pool, PoolKind};
use outbox::Wake;

use crate::Settings;

/// What the API's handlers share. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    pub(crate) pool: Pool,
    /// Wakes the relays after each commit that wrote an event.
    pub(crate) wake: Wake,
    /// Empty until the database was available once.
    catalogue: Arc<OnceLock<Catalogue>>,
    pub(crate) max_requests: u16,
}

impl AppState {
    pub fn new(settings: &Settings, wake: Wake) -> Self {
        let Settings { common, database_connections, max_requests, .. } = settings;
        Self {
            pool: Pool::new(&common.database_url, "orders", *database_connections, PoolKind::Statements),
            wake,
            catalogue: Arc::default(),
            max_requests: *max_requests,
        }
    }

    /// Reads the prices. Call it once the database is prepared; until then `POST /orders` answers 503.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub async fn read_catalogue(&self) -> Result<(), sqlx::Error> {
        let catalogue = Catalogue::read(&self.pool).await?;
        let _ = self.catalogue.set(catalogue);
        Ok(())
    }

    pub(crate) fn catalogue(&self) -> Option<&Catalogue> {
        self.catalogue.get()
    }
}

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
