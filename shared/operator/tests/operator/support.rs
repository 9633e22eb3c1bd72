use std::time::Duration;

use database::{Pool, PoolKind};
use operator::{ReplayPolicy, Selection};
use sqlx::migrate::Migrator;
use testbed::TestDatabase;

/// The policy of a service that replays events of the last two weeks.
pub(crate) const TWO_WEEKS: ReplayPolicy =
    ReplayPolicy { max_age: Duration::from_secs(14 * 86_400), force: false };

pub(crate) struct Database {
    pub(crate) pool: Pool,
    _database: TestDatabase,
}

impl Database {
    pub(crate) async fn new(migrations: &Migrator) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = Pool::new(
            &database.url("billing").parse().map_err(anyhow::Error::msg)?,
            "test",
            10,
            PoolKind::Transactions,
        );
        migrations.run(&mut *pool.acquire().await?).await?;
        Ok(Self { pool, _database: database })
    }
}

pub(crate) fn by_id<Id: Clone>(ids: &[Id]) -> Selection<Id> {
    Selection { ids: Some(ids.to_vec()), ..Selection::default() }
}
