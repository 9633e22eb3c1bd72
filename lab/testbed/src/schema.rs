//! Creates the services' tables without starting the services.

use anyhow::{Context as _, Result};
use sqlx::migrate::Migrator;
use sqlx::{Connection as _, PgConnection};

use crate::binaries::workspace_root;
use crate::bootstrap::DatabaseUrls;

/// Applies the migrations of all services and of the payment provider, each with its own login. Reads them from the
/// checkout.
pub async fn migrate(urls: &DatabaseUrls) -> Result<()> {
    let root = workspace_root().context("failed to find the migrations: there is no checkout")?;
    for (login, folders) in [
        ("orders", &["outbox", "inbox", "orders"][..]),
        ("inventory", &["outbox", "inbox", "inventory"]),
        ("billing", &["outbox", "inbox", "billing"]),
        ("provider", &["provider"]),
    ] {
        let mut migrations = Vec::new();
        for folder in folders {
            let folder = root.join("migrations").join(folder);
            let migrator = Migrator::new(folder.as_path()).await;
            let migrator = migrator.with_context(|| format!("failed to read {}", folder.display()))?;
            migrations.extend(migrator.iter().cloned());
        }
        let mut session = PgConnection::connect(&urls.of(login)).await?;
        let migrated = Migrator::with_migrations(migrations).run(&mut session).await;
        migrated.with_context(|| format!("failed to apply the migrations in {}", folders.join(", ")))?;
        session.close().await?;
    }
    Ok(())
}
