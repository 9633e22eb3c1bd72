//! A log relay whose slot is gone begins a new one by itself, where the log is now.

use std::time::Duration;

use database::Pool;
use flaws::Flaw;
use outbox::{Claim, Error, LogStore, LogTransaction, Store, Wake};

/// The product's log, or one without its halt and without its claims from the table.
pub(crate) struct FlawedLogStore {
    inner: LogStore,
    pool: Pool,
    renews_slot: bool,
}

impl FlawedLogStore {
    pub(crate) fn new(pool: Pool, table_interval: Duration, flaw: Option<Flaw>) -> Self {
        let inner = LogStore::new(pool.clone(), table_interval);
        Self { inner, pool, renews_slot: flaw == Some(Flaw::LostSlotRenewed) }
    }
}

impl Store for FlawedLogStore {
    type Transaction<'store> = LogTransaction<'store>;

    async fn claim(&mut self, lanes: u8, batch: u16) -> Result<Claim<LogTransaction<'_>>, Error> {
        match self.inner.claim(lanes, batch).await {
            // What the lost slot had not read is in the table alone, and stays there.
            Ok(Claim::Events { transaction: LogTransaction::Table(_), .. }) if self.renews_slot => {
                Ok(Claim::Busy)
            }
            Err(halted) if self.renews_slot && halted.to_string().contains("has halted") => {
                let dropped = sqlx::query("select outbox_log_drop()").execute(&self.pool).await;
                dropped.map_err(|error| Error::new("failed to renew the slot", error))?;
                Ok(Claim::Busy)
            }
            claim => claim,
        }
    }

    async fn wait(&mut self, wake: &Wake, worked: Duration, poll: Duration) {
        self.inner.wait(wake, worked, poll).await;
    }

    fn release(&mut self) {
        self.inner.release();
    }
}
