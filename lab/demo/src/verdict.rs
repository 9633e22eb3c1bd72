//! The result of a command.

use std::process::ExitCode;

use serde::Serialize;

/// What a command found out. Each verdict has its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every promise held (exit code 0).
    Held,
    /// A promise was broken (1).
    Broken,
    /// Nothing is proven: the fault did not happen, the load missed it, or the environment failed (2).
    Inconclusive,
    /// The command was interrupted, and the faults that it had caused are repaired (3).
    Interrupted,
}

impl Verdict {
    /// The verdict in capitals, as drills print it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Broken => "BROKEN",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Interrupted => "INTERRUPTED",
        }
    }

    /// Returns the worse of two verdicts, for a command that runs several drills.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let badness = |verdict| match verdict {
            Self::Held => 0,
            Self::Inconclusive => 1,
            Self::Broken => 2,
            Self::Interrupted => 3,
        };
        if badness(other) > badness(self) { other } else { self }
    }
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        Self::from(match verdict {
            Verdict::Held => 0,
            Verdict::Broken => 1,
            Verdict::Inconclusive => 2,
            Verdict::Interrupted => 3,
        })
    }
}
