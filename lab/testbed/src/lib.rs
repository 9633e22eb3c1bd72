//! PostgreSQL and RabbitMQ servers for tests, drills and benchmarks.
//!
//! The servers run in containers where a container engine answers, and as processes of the machine's own binaries
//! elsewhere. The calls and the faults are the same for both. This crate provides:
//!
//! - a **database** and a **virtual host** for one test, on servers that many tests share ([`database()`],
//!   [`vhost()`]): most tests need no more, and each takes a few milliseconds to create;
//! - **private servers** that a test can kill, pause and restart ([`Postgres`], [`Rabbitmq`],
//!   [`RabbitmqCluster`]);
//! - the **system**: the three services and the payment provider as child processes ([`System`]).
//!
//! Everything that this crate starts ends with the process that started it, even after a panic or `kill -9`: see
//! [`guard`]. The servers listen on loopback addresses only.

mod async_drop;
mod binaries;
mod bootstrap;
mod command;
mod container;
mod database;
mod eventually;
pub mod guard;
mod home;
mod install;
mod machine_speed;
mod ports;
mod postgres;
mod power_loss;
mod private_dir;
mod processor_time;
mod rabbitmq;
mod rabbitmq_cluster;
mod restartable_process;
mod schema;
mod scram;
mod server;
mod shared_servers;
mod small_disk;
pub mod sql;
mod standby_waits;
mod system;
mod system_options;
mod test_service;
mod vhost;

pub use binaries::{build_lab, build_services, cargo, find as find_service, profile_option, workspace_root};
pub use bootstrap::{DatabaseUrls, allow_log_relay, bootstrap, new_password};
pub use command::remove_settings;
pub use container::{IMAGES, engine_architecture, engine_version, image_is_present, pull_image};
pub use database::{TestDatabase, database, database_on};
pub use eventually::{eventually, eventually_send, within};
pub use home::Home;
pub use install::{
    can_install, find_faketime, find_postgres, find_rabbitmq, install_packages, missing_packages,
};
pub use machine_speed::{SLOWDOWN, fewer, longer, slowdown};
pub use ports::{free_port, is_free};
pub use postgres::Postgres;
pub use power_loss::{TakenBack, Unsynced};
pub use processor_time::{own_processor_time, processor_time};
pub use rabbitmq::Rabbitmq;
pub use rabbitmq_cluster::{QueueMembers, RabbitmqCluster};
pub use restartable_process::RestartableProcess;
pub use schema::migrate;
pub use server::Server;
pub use standby_waits::{
    commit_waits, hang_commits, release_commits, set_standby, terminate_waiting, waits_for_standby,
    write_without_standby,
};
pub use system::System;
pub use system_options::{Instances, Setup, SystemOptions};
pub use test_service::TestService;
pub use vhost::{TestVhost, vhost, vhost_on};
