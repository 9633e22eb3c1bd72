//! How a command ends.

use std::process::ExitCode;

use serde::Serialize;

/// What a command found out; each has its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The promise held (exit code 0).
    Held,
    /// A promise was broken (1).
    Broken,
    /// Nothing was proven: the fault did not happen, the load missed it, or the environment failed (2).
    Inconclusive,
    /// Interrupted; what had been broken was mended (3).
    Interrupted,
}

impl Verdict {
    /// In capitals, as it ends a drill.
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Broken => "BROKEN",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Interrupted => "INTERRUPTED",
        }
    }

    /// The worse of two, for a command that runs several drills.
    pub fn and(self, other: Self) -> Self {
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
