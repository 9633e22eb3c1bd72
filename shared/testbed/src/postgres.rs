//! A PostgreSQL server of one's own.

use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::container::{Container, IMAGES, Recipe};
use crate::free_port;
use crate::home::Home;
use crate::host::Host;
use crate::local_postgres::{self, SETTINGS};

/// After a crash it replays its log first; a container's first start runs `initdb`.
const READY_WITHIN: Duration = Duration::from_secs(60);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A PostgreSQL server to be killed, paused and restarted. It keeps its port, and its data until it is dropped.
#[derive(Debug)]
pub struct Postgres {
    host: Host,
    port: u16,
    password: String,
}

impl Postgres {
    /// A new, empty server that takes connections, where [`Home::choose`] says.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// The same, where you say.
    pub async fn private_in(home: Home) -> Result<Self> {
        let port = free_port()?;
        // The superuser of a database can run programs as the server's user: other people on this machine must not
        // be able to guess their way in.
        let password = Uuid::new_v4().simple().to_string();
        let host = match home {
            Home::Local => {
                let server = local_postgres::prepare(port, &password)?;
                server.start()?;
                Host::Local(Box::new(server))
            }
            Home::Docker => {
                let settings = SETTINGS.iter().flat_map(|setting| ["-c", setting]);
                let recipe = Recipe {
                    name: format!("testbed-postgres-{}-{port}", std::process::id()),
                    image: IMAGES[0],
                    env: vec![("POSTGRES_PASSWORD", password.clone())],
                    args: ["postgres"].into_iter().chain(settings).map(str::to_owned).collect(),
                    ports: vec![(port, 5432)],
                };
                Host::Container(Container::start_new(recipe).await?)
            }
        };
        let server = Self { host, port, password };
        server.ready().await?;
        Ok(server)
    }

    /// The superuser's URL for a database of this server.
    pub fn admin_url(&self, database: &str) -> String {
        format!("postgres://postgres:{}@127.0.0.1:{}/{database}", self.password, self.port)
    }

    /// SIGKILL, to the server and to all its sessions.
    pub async fn kill(&self) -> Result<()> {
        self.host.kill().await.context("cannot kill PostgreSQL")
    }

    /// Starts it again after [`Postgres::kill`] or [`Postgres::stop`]; returns when it takes connections.
    pub async fn start(&self) -> Result<()> {
        self.host.start().await.context("cannot start PostgreSQL")?;
        self.ready().await
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub async fn pause(&self) -> Result<()> {
        self.host.pause().await.context("cannot pause PostgreSQL")
    }

    /// Undoes [`Postgres::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.host.resume().await.context("cannot resume PostgreSQL")
    }

    /// An orderly shutdown, with a checkpoint; sessions are ended.
    pub async fn stop(&self) -> Result<()> {
        self.host.stop().await.context("cannot stop PostgreSQL")
    }

    /// The server's process id on this machine, or `None` while it is down.
    pub async fn pid(&self) -> Option<u32> {
        self.host.pid().await
    }

    /// A login, not an open port: the container engine's proxy accepts connections for a server that is not up yet.
    async fn ready(&self) -> Result<()> {
        let url = self.admin_url("postgres");
        self.host
            .ready("PostgreSQL", READY_WITHIN, || async {
                let ping = async { PgConnection::connect(&url).await?.close().await };
                timeout(ANSWER_WITHIN, ping).await.context("no answer to a new connection")??;
                Ok(())
            })
            .await
    }
}
