use std::pin::Pin;

use anyhow::Result;

use super::drill_run::DrillRun;
use super::report::Report;

/// One drill.
pub(crate) struct Drill {
    pub(crate) name: &'static str,
    /// What the drill claims. The verdict is about this.
    pub(crate) claim: &'static str,
    pub(super) run: for<'a> fn(&'a DrillRun<'a>) -> RunningDrill<'a>,
}

/// Boxed, because the future of each drill has a type of its own.
type RunningDrill<'a> = Pin<Box<dyn Future<Output = Result<Report>> + 'a>>;
