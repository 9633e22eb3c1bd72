//! What the handlers of the API share: the database, the wake-up of the relays, and the prices.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use database::Pool;
use messaging::Wake;
use service::problem::Problem;
use tokio::sync::Mutex;

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    pub(crate) pool: Pool,
    /// Wakes the relays after each commit that wrote an event.
    pub wake: Wake,
    prices: Arc<RwLock<Arc<Prices>>>,
    /// When the prices were read last. Held while they are read.
    prices_read: Arc<Mutex<Option<Instant>>>,
}

/// The price of one piece of each product, by its SKU, in cents.
pub(crate) type Prices = HashMap<String, i64>;

/// How soon the prices are read again for a product that is not among them.
const PRICES_INTERVAL: Duration = Duration::from_secs(1);

impl AppState {
    pub(crate) fn new(pool: Pool, wake: Wake) -> Self {
        Self { pool, wake, prices: Arc::default(), prices_read: Arc::default() }
    }

    /// The prices, with those of these products if they exist. They are read before the first order, and again only where a
    /// product is missing, at most once a second: placing an order needs no look-up. A price changes by a migration and a
    /// restart.
    pub(crate) async fn prices(&self, mut skus: impl Iterator<Item = &str>) -> Result<Arc<Prices>, Problem> {
        let prices = || self.prices.read().unwrap_or_else(PoisonError::into_inner).clone();
        let known = prices();
        if skus.all(|sku| known.contains_key(sku)) {
            return Ok(known);
        }
        let mut read = self.prices_read.lock().await;
        if read.is_none_or(|at| at.elapsed() > PRICES_INTERVAL) {
            let products = sqlx::query!("select sku, unit_price from products").fetch_all(&self.pool).await?;
            let found = products.into_iter().map(|row| (row.sku, row.unit_price)).collect();
            *self.prices.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
            *read = Some(Instant::now());
        }
        let known = prices();
        // It is being loaded: an order that is refused now may be valid.
        if known.is_empty() { Err(Problem::unavailable("the catalogue is empty")) } else { Ok(known) }
    }
}
