//! The options that all benchmarks share.

use std::time::Duration;

/// The product's processes, by their names.
pub(crate) const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];

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

    /// Adds a setting of every service: `name` follows the service's own prefix, for example `ORDERS_`.
    pub(crate) fn with_setting_of_each(&self, name: &str, value: &str) -> Self {
        SERVICES.into_iter().fold(self.clone(), |setup, service| {
            setup.with_setting(&format!("{}_{name}", service.to_uppercase()), value)
        })
    }

    /// Returns how long to wait where only the accuracy of a figure needs the wait.
    pub(crate) fn pause(&self, full: Duration) -> Duration {
        if self.smoke { full / 20 } else { full }
    }
}
