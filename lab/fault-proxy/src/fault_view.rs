use std::{future::pending, sync::Arc};

use tokio::sync::watch;

use crate::active_faults::{ActiveFaults, FaultList};

/// The list of faults that one task acts on. It stays in use until the task takes a newer one or drops the view.
pub(crate) struct FaultView {
    published: watch::Receiver<Arc<FaultList>>,
    list: Arc<FaultList>,
}

impl FaultView {
    pub(crate) fn new(faults: &ActiveFaults) -> Self {
        let mut published = faults.subscribe();
        let list = Arc::clone(&published.borrow_and_update());
        Self { published, list }
    }

    pub(crate) fn list(&self) -> &FaultList {
        &self.list
    }

    /// Waits for a newer list and takes it.
    pub(crate) async fn changed(&mut self) {
        self.published_change().await;
        self.list = Arc::clone(&self.published.borrow_and_update());
    }

    /// Waits for a cut.
    ///
    /// The view then keeps the list from before the cut. So an injected cut counts as in force only after the caller
    /// has reset the connection and dropped the view.
    pub(crate) async fn cut(&mut self) -> Arc<FaultList> {
        loop {
            let latest = Arc::clone(&self.published.borrow_and_update());
            if latest.is_cut() {
                return latest;
            }
            self.list = latest;
            self.published_change().await;
        }
    }

    pub(crate) async fn until(&mut self, condition: impl Fn(&FaultList) -> bool) {
        while !condition(&self.list) {
            self.changed().await;
        }
    }

    async fn published_change(&mut self) {
        if self.published.changed().await.is_err() {
            // The route is gone and its tasks are being aborted.
            pending::<()>().await;
        }
    }
}
