//! Asynchronous clean-up from a destructor.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::Builder;
use tokio::time::timeout;

/// Longer than a busy server takes: PostgreSQL makes a checkpoint before it drops a database. The server deletes everything
/// at its own end anyway.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(10);

/// Runs `cleanup` and blocks until it is done, or the deadline has passed.
///
/// It runs on another thread, because the runtime in which the value is dropped may be shutting down. A failure is
/// not reported: the server is about to end too.
pub(crate) fn block_on_cleanup(cleanup: impl Future<Output = Result<()>> + Send + 'static) {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            let _ = runtime.block_on(async { timeout(CLEANUP_DEADLINE, cleanup).await });
        }
        let _ = done.send(());
    });
    // The process may end right after its last test: without this wait nothing would be cleaned up.
    let _ = wait.recv_timeout(CLEANUP_DEADLINE);
}
