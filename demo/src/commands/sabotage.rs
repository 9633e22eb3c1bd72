//! `cargo demo sabotage`: every protection left out once, and what noticed.

use anyhow::Result;

use super::test;
use crate::choice::Choice;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// The experiments are a test of the suite; this shows it alone, with its table.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let args = ["-p", "demo", "--test", "sabotages", "--", "--nocapture", "every_missing"];
    test::run(choice, &args.map(str::to_owned), terminal).await
}
