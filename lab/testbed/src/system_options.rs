//! The options of a system of services.

use std::path::{Path, PathBuf};

use crate::bootstrap::DatabaseUrls;

/// The number of processes of each service.
#[derive(Clone, Copy, Debug)]
pub struct Instances {
    /// Each has a relay.
    pub orders: usize,
    pub inventory: usize,
    pub billing: usize,
}

impl Default for Instances {
    fn default() -> Self {
        Self { orders: 1, inventory: 1, billing: 1 }
    }
}

/// What runs, and with which settings. By default the services as they are, one process of each.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub instances: Instances,
    /// Further settings, for example `("ORDERS_RELAY_POLL", "100ms")`: each service reads those with its own prefix. And
    /// `CRASH_…` and `SABOTAGE` for lab programs.
    pub settings: Vec<(String, String)>,
    /// The same for all processes of one service: its name, and the setting.
    pub settings_of_service: Vec<(&'static str, (String, String))>,
    /// Whether the services write into a pipe, as in a container, from which another process copies into the log:
    /// `System::pause_log_reader` stops that one.
    pub piped_logs: bool,
    /// Whether the lab programs (`orders-lab`, …) run instead of the services.
    pub lab: bool,
    /// The variant that runs instead of the order service, by a name that `orders-variant` accepts.
    pub variant: Option<&'static str>,
}

impl Setup {
    /// With one more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// With so many processes of each service.
    #[must_use]
    pub fn with_instances(self, orders: usize, inventory: usize, billing: usize) -> Self {
        Self { instances: Instances { orders, inventory, billing }, ..self }
    }

    /// With so many partitions of each service's queue.
    #[must_use]
    pub fn with_partitions(self, number: u8) -> Self {
        let names = ["ORDERS_PARTITIONS", "INVENTORY_PARTITIONS", "BILLING_PARTITIONS"];
        names.into_iter().fold(self, |setup, name| setup.with(name, number.to_string()))
    }

    /// With lab programs that crash at `point` (for example `relay-confirmed:kill`) once, while the file `once` does not
    /// exist: the first process of any service that gets there.
    #[must_use]
    pub fn crashing_at(self, point: impl Into<String>, once: &Path) -> Self {
        let setup = self.with("CRASH_POINT", point).with("CRASH_ONCE", once.to_string_lossy());
        Self { lab: true, ..setup }
    }

    /// With lab programs of which only those of `service` crash at `point`. Every service has a relay, and on a busy machine
    /// inventory may have published its answer before the order service's relay reaches the point.
    #[must_use]
    pub fn crashing_in(mut self, service: &'static str, point: &str, once: &Path) -> Self {
        let once = once.to_string_lossy().into_owned();
        self.settings_of_service.push((service, ("CRASH_POINT".to_owned(), point.to_owned())));
        self.settings_of_service.push((service, ("CRASH_ONCE".to_owned(), once)));
        Self { lab: true, ..self }
    }
}

/// What the services connect to, what runs, and where it logs.
#[derive(Clone, Debug)]
pub struct SystemOptions {
    /// One URL for each service.
    pub database: DatabaseUrls,
    /// The broker's URL, virtual host included.
    pub amqp_url: String,
    /// The port of the first `orders` process; 0 stands for a free one. All other processes get free ports.
    pub orders_port: u16,
    /// The directory of the logs, one file per process. `None` stands for a directory that is erased at the end.
    pub log_dir: Option<PathBuf>,
    pub setup: Setup,
}

impl SystemOptions {
    pub fn new(database: DatabaseUrls, amqp_url: impl Into<String>, setup: Setup) -> Self {
        Self { database, amqp_url: amqp_url.into(), orders_port: 0, log_dir: None, setup }
    }
}
