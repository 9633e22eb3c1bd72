use std::time::Duration;

use operator::{ReplayPolicy, Selection};
use sqlx::{PgPool, migrate::Migrator};
use testbed::TestDatabase;

/// The policy of a service that replays events of the last two weeks.
pub(crate) const TWO_WEEKS: ReplayPolicy =
    ReplayPolicy { max_age: Duration::from_secs(14 * 86_400), force: false };

pub(crate) struct Database {
    pub(crate) pool: PgPool,
    _database: TestDatabase,
}

impl Database {
    pub(crate) async fn new(migrations: &Migrator) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let pool = PgPool::connect(&database.url("billing")).await?;
        migrations.run(&pool).await?;
        Ok(Self { pool, _database: database })
    }
}

pub(crate) fn by_id<Id: Clone>(ids: &[Id]) -> Selection<Id> {
    Selection { ids: Some(ids.to_vec()), ..Selection::default() }
}
