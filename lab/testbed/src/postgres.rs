//! A private PostgreSQL server.

use std::ops::Deref;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use crate::command::{command_as, is_root};
use crate::container::{ContainerSpec, POSTGRES_IMAGE};
use crate::home::Home;
use crate::install::find_postgres;
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::server::{LocalServer, Probe, Server};

/// All tests of a process share a server, and each opens its own pools: the default of 100 connections is too low.
const MAX_CONNECTIONS: &str = "max_connections=400";

/// A PostgreSQL server with the operations of a [`Server`]. It keeps its port and its data until it is dropped.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    port: u16,
    password: String,
}

impl Postgres {
    /// Starts a new, empty server where [`Home::choose`] says, and waits until it accepts connections.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// Like [`Postgres::private`], but in `home`.
    pub async fn private_in(home: Home) -> Result<Self> {
        let port = free_port()?;
        // A database superuser can run programs as the server's user: other users of this machine must not be able to
        // guess the password.
        let password = Uuid::new_v4().simple().to_string();
        let container = ContainerSpec {
            name: format!("testbed-postgres-{}-{port}", std::process::id()),
            image: POSTGRES_IMAGE,
            env: vec![("POSTGRES_PASSWORD", password.clone())],
            args: ["postgres", "-c", MAX_CONNECTIONS].map(str::to_owned).into(),
            ports: vec![(port, 5432)],
        };
        let probe = Probe::Postgres { url: admin_url(&password, port, "postgres") };
        let local = || create(port, &password);
        let server = Server::start_new("PostgreSQL", home, local, container, probe).await?;
        Ok(Self { server, port, password })
    }

    /// The superuser's URL for a database of this server.
    pub fn admin_url(&self, database: &str) -> String {
        admin_url(&self.password, self.port, database)
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn admin_url(password: &str, port: u16, database: &str) -> String {
    format!("postgres://postgres:{password}@127.0.0.1:{port}/{database}")
}

/// Creates a new, empty cluster; the server is not started. Durability keeps its default (`fsync` is on): the tests
/// crash the server.
fn create(port: u16, password: &str) -> Result<LocalServer> {
    let bin = find_postgres()?;
    // `initdb` and `postgres` refuse to run as root.
    let user = is_root().then_some("postgres");
    let dir = PrivateDir::new("postgres", user)?;
    let data = dir.directory_of(user, "data")?;
    let run = |program: &str| match user {
        Some(user) => command_as(user, bin.join(program)),
        None => Command::new(bin.join(program)),
    };

    let password_file = dir.secret_of(user, "password", password)?;
    let mut initdb = run("initdb");
    initdb.arg("-D").arg(&data).arg("--pwfile").arg(&password_file).current_dir(dir.path());
    // `--no-sync`: the files of an empty cluster need not survive a power cut.
    initdb.args(["-U", "postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]);
    let output = initdb.output().context("failed to run `initdb`")?;
    std::fs::remove_file(&password_file)?;
    if !output.status.success() {
        bail!("`initdb` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }

    let mut postgres = run("postgres");
    postgres.arg("-D").arg(&data).arg("-p").arg(port.to_string()).current_dir(dir.path());
    for setting in [MAX_CONNECTIONS, "listen_addresses=127.0.0.1", "unix_socket_directories="] {
        postgres.arg("-c").arg(setting);
    }
    // SIGINT asks for a fast shutdown. SIGTERM would wait until the last client has disconnected.
    Ok(LocalServer::new(postgres, "INT", dir))
}
