//! Waiting for a condition, never for a time.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout_at};

/// How often a condition is looked at: short against anything worth waiting for, long against the cost of looking.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Polls `probe` every 20 ms until it answers `Ok(Some(_))`, and returns that.
///
/// `Ok(None)` and `Err(_)` both mean "not yet": a server that is coming up refuses a few connections first. When
/// the deadline passes, the error names `what` was waited for and why the last look failed. A probe that hangs is
/// cut off at the deadline too.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let wait = Wait::new(what, deadline);
    loop {
        if let ControlFlow::Break(end) = wait.judge(timeout_at(wait.until, probe()).await) {
            return end;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The same for futures that have to be `Send`, so that a server can be killed and started in a spawned task: the
/// compiler cannot tell that yet of what an `AsyncFnMut` returns.
pub(crate) async fn eventually_send<T, Look>(
    what: &str,
    deadline: Duration,
    mut probe: impl FnMut() -> Look + Send,
) -> Result<T>
where
    Look: Future<Output = Result<Option<T>>> + Send,
{
    let wait = Wait::new(what, deadline);
    loop {
        if let ControlFlow::Break(end) = wait.judge(timeout_at(wait.until, probe()).await) {
            return end;
        }
        sleep(LOOK_EVERY).await;
    }
}

struct Wait<'a> {
    what: &'a str,
    deadline: Duration,
    until: Instant,
}

impl<'a> Wait<'a> {
    fn new(what: &'a str, deadline: Duration) -> Self {
        Self { what, deadline, until: Instant::now() + deadline }
    }

    fn judge<T>(&self, look: Result<Result<Option<T>>, Elapsed>) -> ControlFlow<Result<T>> {
        let reason = match look {
            Ok(Ok(Some(value))) => return ControlFlow::Break(Ok(value)),
            Ok(Ok(None)) => "not yet".to_owned(),
            Ok(Err(reason)) => format!("{reason:#}"),
            Err(_) => "the last look did not return".to_owned(),
        };
        if Instant::now() + LOOK_EVERY < self.until {
            return ControlFlow::Continue(());
        }
        let (what, seconds) = (self.what, self.deadline.as_secs_f64());
        ControlFlow::Break(Err(anyhow!("waited {seconds:.1} s for {what}: {reason}")))
    }
}
