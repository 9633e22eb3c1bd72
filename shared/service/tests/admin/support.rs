use std::time::Duration;

use database::{Pool, PoolKind};
use messaging::replay::{ReplayPolicy, Selection};
use sqlx::migrate::Migrator;
use testbed::TestDatabase;

/// The policy of a service that replays events of the last two weeks.
pub(crate) const TWO_WEEKS: ReplayPolicy =
    ReplayPolicy { max_age: Duration::from_secs(14 * 86_400), force: false };

pub(crate) struct Database {
    pub(crate) pool: Pool,
    database: TestDatabase,
}

impl Database {
    pub(crate) async fn new(migrations: &Migrator) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = pool(&database, 10)?;
        migrations.run(&mut *pool.acquire().await?).await?;
        Ok(Self { pool, database })
    }

    /// So many separate connections.
    pub(crate) fn pool_of(&self, connections: u32) -> anyhow::Result<Pool> {
        pool(&self.database, connections)
    }
}

fn pool(database: &TestDatabase, connections: u32) -> anyhow::Result<Pool> {
    let url = database.url("billing").parse().map_err(anyhow::Error::msg)?;
    Ok(Pool::new(&url, "test", connections, PoolKind::Transactions))
}

pub(crate) fn by_id<Id: Clone + Default>(ids: &[Id]) -> Selection<Id> {
    Selection { ids: Some(ids.to_vec()), ..Selection::default() }
}
