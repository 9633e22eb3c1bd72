//! `cargo demo sabotage`: leaves out each protection once, and shows which check noticed.

use anyhow::Result;

use super::test::{self, TestOptions};
use crate::Verdict;
use crate::choice::Choice;
use crate::terminal::Terminal;

/// The experiments are a test. This command runs that test alone, and prints its table.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let args = ["--test", "sabotages", "--", "--ignored", "--nocapture"];
    test::run(choice, &TestOptions::once(args.map(str::to_owned).into()), terminal).await
}
