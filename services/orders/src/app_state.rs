use std::sync::{Arc, OnceLock};

use database::{Pool, PoolKind};
use outbox::Wake;

use crate::{Settings, catalogue::Catalogue};

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
