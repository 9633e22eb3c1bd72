//! A private PostgreSQL server.

use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::container::{Container, ContainerSpec, POSTGRES_IMAGE};
use crate::home::Home;
use crate::local_postgres;
use crate::ports::free_port;
use crate::server::Server;
use crate::server_settings::POSTGRES_MAX_CONNECTIONS;

/// After a crash the server replays its log before it accepts connections. A container's first start runs `initdb`.
const READY_DEADLINE: Duration = Duration::from_secs(60);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A PostgreSQL server that the caller can kill, pause and restart. It keeps its port and its data until it is dropped.
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
        let server = match home {
            Home::Local => {
                let server = local_postgres::create(port, &password)?;
                server.process.start()?;
                Server::Local(Box::new(server))
            }
            Home::Docker => {
                let spec = ContainerSpec {
                    name: format!("testbed-postgres-{}-{port}", std::process::id()),
                    image: POSTGRES_IMAGE,
                    env: vec![("POSTGRES_PASSWORD", password.clone())],
                    args: ["postgres", "-c", POSTGRES_MAX_CONNECTIONS].map(str::to_owned).into(),
                    ports: vec![(port, 5432)],
                };
                Server::Container(Container::start_new(spec).await?)
            }
        };
        let postgres = Self { server, port, password };
        postgres.wait_ready().await?;
        Ok(postgres)
    }

    /// The superuser's URL for a database of this server.
    pub fn admin_url(&self, database: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// Sends SIGKILL to the server and all its sessions.
    pub async fn kill(&self) -> Result<()> {
        self.server.kill().await.context("failed to kill PostgreSQL")
    }

    /// Starts the server again after [`Postgres::kill`] or [`Postgres::stop`], and waits until it accepts connections.
    pub async fn start(&self) -> Result<()> {
        self.server.start().await.context("failed to start PostgreSQL")?;
        self.wait_ready().await
    }

    /// Sends SIGSTOP: connections stay open and the server does not answer.
    pub async fn pause(&self) -> Result<()> {
        self.server.pause().await.context("failed to pause PostgreSQL")
    }

    /// Undoes [`Postgres::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.server.resume().await.context("failed to resume PostgreSQL")
    }

    /// Shuts the server down in order: it ends its sessions and writes a checkpoint.
    pub async fn stop(&self) -> Result<()> {
        self.server.stop().await.context("failed to stop PostgreSQL")
    }

    /// The server's process id on this machine, or `None` while it does not run.
    pub async fn pid(&self) -> Option<u32> {
        self.server.pid().await
    }

    /// Waits until a login succeeds. An open port proves nothing: the container engine's proxy accepts connections for
    /// a server that is still starting.
    async fn wait_ready(&self) -> Result<()> {
        let url = self.admin_url("postgres");
        self.server
            .wait_ready("PostgreSQL", READY_DEADLINE, || async {
                let login = async { PgConnection::connect(&url).await?.close().await };
                timeout(PROBE_TIMEOUT, login).await.context("the login timed out")??;
                Ok(())
            })
            .await
    }
}
