//! What every benchmark is told besides its own options.

use std::time::Duration;

/// The global flags of the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    /// Settings of the services other than their defaults, as environment variables.
    pub(crate) settings: Vec<(String, String)>,
    /// Whether this run only shows that the benchmark works. Its figures mean nothing.
    pub(crate) smoke: bool,
}

impl Setup {
    /// Adds one setting. Settings of the command line come later and win.
    pub(crate) fn with_setting(&self, name: &str, value: &str) -> Self {
        let mut settings = vec![(name.to_owned(), value.to_owned())];
        settings.extend(self.settings.iter().cloned());
        Self { settings, ..self.clone() }
    }

    /// Returns how long to wait where only the accuracy of a figure needs the wait.
    pub(crate) fn pause(&self, full: Duration) -> Duration {
        if self.smoke { full / 20 } else { full }
    }
}
