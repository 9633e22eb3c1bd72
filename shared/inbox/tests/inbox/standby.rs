//! What only the primary has is not acknowledged: after a fail-over nothing would apply the event.

use std::slice;

use inbox::Error;
use messaging::{Applied, DeadLetterStore as _};
use testbed::{release_commits, waits_for_standby, write_without_standby};

use crate::support::{BILLING, TestInbox, event, letter, record};

#[tokio::test]
async fn duplicate_is_acknowledged_only_when_the_synchronous_standby_has_its_record() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    let TestInbox { pool, table, .. } = &TestInbox::on(testbed::database_on(&admin).await?).await?;
    let event = event();
    write_without_standby(&admin, record(pool, &event)).await?;
    let mut applied = std::pin::pin!(BILLING.apply_once(pool, slice::from_ref(&event), async |_, _| Ok(())));
    waits_for_standby(&admin, applied.as_mut()).await?;
    release_commits(&admin).await?;
    let (applied, ()) = applied.await.map_err(|Error(failure)| failure)?;
    assert_eq!(applied, Applied { first: 0, duplicates: 1 });

    let letter = letter(&event, "unexpected");
    write_without_standby(&admin, table.save(&letter)).await?;
    let mut saved = std::pin::pin!(table.save(&letter));
    waits_for_standby(&admin, saved.as_mut()).await?;
    release_commits(&admin).await?;
    Ok(saved.await?)
}
