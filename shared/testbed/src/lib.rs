//! PostgreSQL and RabbitMQ for tests, drills and benchmarks: containers where an engine answers, the machine's own
//! servers elsewhere. The same calls, the same faults, in both.
//!
//! Three kinds of thing are handed out:
//!
//! - a **database** and a **virtual host** of one's own on servers that are shared ([`database()`], [`vhost()`]): what
//!   most tests want, a few milliseconds each;
//! - **servers** of one's own, to be killed, paused and restarted ([`Postgres`], [`Rabbitmq`]);
//! - the **system**: the three services as child processes ([`System`]).
//!
//! Whatever is started here is gone when the process that started it is gone, even after a panic or `kill -9`: see
//! [`guard`]. Nothing but loopback addresses is listened on.

mod binaries;
mod bootstrap;
mod container;
mod database;
mod eventually;
pub mod guard;
mod home;
mod host;
mod install;
mod local;
mod local_postgres;
mod local_rabbitmq;
mod ports;
mod postgres;
mod rabbitmq;
mod schema;
mod servers;
mod system;
mod system_options;
mod vhost;

pub use binaries::{
    build_drill_services, build_services, build_variants, cargo, find as find_service, workspace_root,
};
pub use bootstrap::{DatabaseUrls, Passwords, bootstrap, wait_for_database};
pub use container::{IMAGES, engine_version, image_is_present};
pub use database::{TestDatabase, database};
pub use eventually::eventually;
pub use home::Home;
/// For the tests that hold what is said to what was promised. It comes from here because a dependency of tests alone would
/// have everything built twice: with the features that it asks of others, and without.
pub use jsonschema;

pub use install::{can_install, install_missing, missing_packages};
pub use local_postgres::find as find_postgres;
pub use local_rabbitmq::find as find_rabbitmq;
pub use ports::{free_port, is_free};
pub use postgres::Postgres;
pub use rabbitmq::Rabbitmq;
pub use schema::migrate;
pub use servers::{Servers, servers};
pub use system::System;
pub use system_options::{Instances, SystemOptions};
pub use vhost::{TestVhost, vhost};
