//! Waits for a condition instead of a time.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout_at};

use crate::machine_speed::longer;

/// Short compared with the waits of a test, long compared with the cost of a probe.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Calls `probe` every 20 ms until it returns `Ok(Some(_))`, and returns that value.
///
/// `Ok(None)` and `Err(_)` both mean "not yet": a server that is starting refuses a few connections first. If the
/// deadline passes, the error names `what` the caller waited for and why the last probe failed. A probe that hangs is
/// cancelled at the deadline.
///
/// The deadline is that of the reference machine, and [`longer`] on a slower one: it measures nothing. See
/// [`within`] for a time that is a claim.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    within(what, longer(deadline), probe).await
}

/// Like [`eventually`], with the same deadline on every machine.
pub async fn within<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut wait = Wait::new(what, deadline);
    loop {
        if let ControlFlow::Break(result) = wait.judge(timeout_at(wait.until, probe()).await) {
            return result;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Like [`eventually`], but its future is `Send`, so that a spawned task can kill and start a server. The compiler
/// cannot prove that for the future of an `AsyncFnMut`.
pub async fn eventually_send<T, Probe>(
    what: &str,
    deadline: Duration,
    mut probe: impl FnMut() -> Probe + Send,
) -> Result<T>
where
    Probe: Future<Output = Result<Option<T>>> + Send,
{
    let mut wait = Wait::new(what, longer(deadline));
    loop {
        if let ControlFlow::Break(result) = wait.judge(timeout_at(wait.until, probe()).await) {
            return result;
        }
        sleep(POLL_INTERVAL).await;
    }
}

struct Wait<'a> {
    what: &'a str,
    deadline: Duration,
    until: Instant,
    /// Why the last probe that returned has failed.
    reason: String,
}

impl<'a> Wait<'a> {
    fn new(what: &'a str, deadline: Duration) -> Self {
        Self { what, deadline, until: Instant::now() + deadline, reason: "no probe has returned".to_owned() }
    }

    /// Decides by the outcome of a probe whether the wait is over.
    fn judge<T>(&mut self, outcome: Result<Result<Option<T>>, Elapsed>) -> ControlFlow<Result<T>> {
        match outcome {
            Ok(Ok(Some(value))) => return ControlFlow::Break(Ok(value)),
            Ok(Ok(None)) => "not yet".clone_into(&mut self.reason),
            Ok(Err(reason)) => self.reason = format!("{reason:#}"),
            // What an earlier probe was refused for says more than that this one hangs.
            Err(_) => self.reason += "; the last probe did not return",
        }
        if Instant::now() + POLL_INTERVAL < self.until {
            return ControlFlow::Continue(());
        }
        let (what, reason, seconds) = (self.what, &self.reason, self.deadline.as_secs_f64());
        ControlFlow::Break(Err(anyhow!("waited {seconds:.1} s for {what}: {reason}")))
    }
}
