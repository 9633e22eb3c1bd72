use std::{
    future::Future,
    sync::{Arc, OnceLock},
};

use outbox::Wake;
use runtime::database::{self, DatabaseState, Purpose};
use sqlx::{PgPool, migrate::Migrator};
use tokio_util::sync::CancellationToken;

use crate::{Settings, catalogue::Catalogue};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/orders");

/// What the API's handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Shop {
    pub(crate) pool: PgPool,
    /// Rung after each commit that wrote an event.
    pub wake: Wake,
    /// Empty until the database has been there once.
    catalogue: Arc<OnceLock<Catalogue>>,
    database: DatabaseState,
    pub(crate) max_requests: u16,
}

impl Shop {
    /// Connects to nothing yet.
    pub fn new(settings: &Settings) -> Self {
        let connections = settings.database_connections;
        Self {
            pool: database::pool(&settings.ground.database_url, "orders", connections, Purpose::Statements),
            wake: Wake::new(),
            catalogue: Arc::default(),
            database: DatabaseState::default(),
            max_requests: settings.max_requests,
        }
    }

    /// Waits for the database, brings its schema up to date, reads the catalogue.
    ///
    /// # Errors
    /// When the catalogue cannot be read from a database that was there a moment ago.
    pub async fn open(&self, settings: &Settings, stop: &CancellationToken) -> anyhow::Result<()> {
        let migrations = [&outbox::MIGRATIONS, &inbox::MIGRATIONS, &MIGRATIONS];
        if database::prepare(&settings.ground.database_url, "ORDERS_DATABASE_URL", &migrations, stop).await {
            let catalogue = Catalogue::read(&self.pool).await?;
            let _ = self.catalogue.set(catalogue);
            self.database.set_up();
        }
        Ok(())
    }

    /// The catalogue, once it has been read.
    pub(crate) fn catalogue(&self) -> Option<&Catalogue> {
        self.catalogue.get()
    }

    /// Whether the database answers.
    pub fn probe(&self) -> impl Fn() -> Result<(), String> + Send + Sync + 'static {
        self.database.probe()
    }

    /// Keeps [`probe`](Self::probe) truthful.
    pub fn watch(self, stop: CancellationToken) -> impl Future<Output = ()> + Send {
        self.database.watch(self.pool, stop)
    }
}
