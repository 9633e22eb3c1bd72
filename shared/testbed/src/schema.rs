//! The services' tables without the services.

use std::path::Path;

use anyhow::{Context as _, Result};
use sqlx::migrate::Migrator;
use sqlx::{Connection as _, PgConnection};

use crate::DatabaseUrls;

/// Applies the migrations of all services and of the provider, from the checkout, each as its own login.
pub async fn migrate(urls: &DatabaseUrls) -> Result<()> {
    let root = crate::workspace_root().context("the migrations are in the checkout")?;
    for (url, parts) in [
        (&urls.orders, &["outbox", "inbox", "orders"][..]),
        (&urls.inventory, &["outbox", "inbox", "inventory"]),
        (&urls.billing, &["outbox", "inbox", "billing"]),
        (&urls.provider, &["provider"]),
    ] {
        let mut all = Vec::new();
        for part in parts {
            let folder = root.join("migrations").join(part);
            let migrator = Migrator::new(Path::new(&folder)).await;
            all.extend(migrator.with_context(|| format!("{}", folder.display()))?.iter().cloned());
        }
        let mut session = PgConnection::connect(url).await?;
        Migrator::with_migrations(all).run(&mut session).await.context("cannot migrate")?;
        session.close().await?;
    }
    Ok(())
}
