//! The options of a system of services.

use std::path::PathBuf;

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

/// What the services connect to, and with which settings.
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
    /// Whether the services write into a pipe, as in a container, from which another process copies into the log:
    /// `System::pause_log_reader` stops that one.
    pub piped_logs: bool,
    /// Further settings, for example `("ORDERS_RELAY_POLL", "100ms")`. Each service reads those with its own prefix.
    pub env: Vec<(String, String)>,
    /// The same for all processes of one service: its name, and the setting.
    pub env_of_service: Vec<(&'static str, (String, String))>,
    pub instances: Instances,
    /// Whether to start the lab programs (`orders-lab`, …) instead of the services.
    pub lab: bool,
    /// The variant to start instead of the order service, by a name that `orders-variant` accepts.
    pub variant: Option<&'static str>,
}

impl SystemOptions {
    /// One process of each service, free ports, default settings.
    pub fn new(database: DatabaseUrls, amqp_url: impl Into<String>) -> Self {
        Self {
            database,
            amqp_url: amqp_url.into(),
            orders_port: 0,
            log_dir: None,
            piped_logs: false,
            env: Vec::new(),
            env_of_service: Vec::new(),
            instances: Instances::default(),
            lab: false,
            variant: None,
        }
    }
}
