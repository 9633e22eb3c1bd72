//! What a system of three services is to be made of.

use std::path::PathBuf;

use crate::bootstrap::DatabaseUrls;

/// How many processes of each service.
#[derive(Clone, Copy, Debug)]
pub struct Instances {
    /// Of the order service (each has a relay).
    pub orders: usize,
    /// Of the inventory service.
    pub inventory: usize,
    /// Of the billing service.
    pub billing: usize,
}

impl Default for Instances {
    fn default() -> Self {
        Self { orders: 1, inventory: 1, billing: 1 }
    }
}

/// What the services are to be connected to, and how.
#[derive(Clone, Debug)]
pub struct SystemOptions {
    /// One URL for each service.
    pub database: DatabaseUrls,
    /// The broker's URL, virtual host included.
    pub amqp_url: String,
    /// The port of the first `orders` process; 0 takes a free one. All others take free ones.
    pub orders_port: u16,
    /// Where the logs go, one file per process; `None`: a directory that is erased at the end.
    pub log_dir: Option<PathBuf>,
    /// More settings, for example `("ORDERS_RELAY_POLL", "100ms")`. Each service reads those with its own prefix.
    pub env: Vec<(String, String)>,
    /// How many processes of each service.
    pub instances: Instances,
    /// Whether to start the drill builds (`orders-drill`, …) instead of the services themselves.
    pub drill: bool,
    /// Which variant to start in the place of each order service: a name that `orders-variant` knows.
    pub variant: Option<&'static str>,
}

impl SystemOptions {
    /// One process of each service, free ports, default settings.
    pub fn new(database: DatabaseUrls, amqp_url: impl Into<String>) -> Self {
        let amqp_url = amqp_url.into();
        let (env, instances) = (Vec::new(), Instances::default());
        Self {
            database,
            amqp_url,
            orders_port: 0,
            log_dir: None,
            env,
            instances,
            drill: false,
            variant: None,
        }
    }
}
