//! The system as a container of its network sees it (`docker compose run --rm demo …`): addresses from the environment,
//! and no way to kill anything. Who has the engine injects the faults: the line to copy is printed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::select_ok;
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http;
use crate::part::{Action, BROKER, DATABASE, container};
use crate::proxies::Proxies;
use crate::state::{Addresses, LOGINS};
use crate::terminal::Terminal;

/// How long a person may take to copy a line.
const COPY_DEADLINE: Duration = Duration::from_secs(180);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// The broker's address: it has no page of its own here.
const BROKER_ADDRESS: &str = "DEMO_BROKER_ADDRESS";

#[derive(Debug)]
pub(crate) struct NetworkSystem {
    pub(crate) addresses: Addresses,
    /// Only in the lab's network.
    pub(crate) proxies: Option<Proxies>,
    terminal: Terminal,
    /// The parts that were seen to work again after they did not.
    restarts: Mutex<Vec<String>>,
}

impl NetworkSystem {
    /// Reads `DEMO_…`. `None`: not in a container of the network.
    pub(crate) fn from_env() -> Option<Self> {
        let read = |name: &str| std::env::var(name).ok();
        let none = || String::new();
        let addresses = Addresses {
            orders_url: read("DEMO_ORDERS_URL")?,
            inventory_url: read("DEMO_INVENTORY_URL")?,
            billing_url: read("DEMO_BILLING_URL")?,
            provider_url: read("DEMO_PROVIDER_URL")?,
            auditor_url: read("DEMO_AUDITOR_URL")?,
            admin_url: none(),
            databases: LOGINS
                .into_iter()
                .filter_map(|login| {
                    let url = read(&format!("DEMO_{}_DATABASE_URL", login.to_uppercase()))?;
                    Some((login.to_owned(), url))
                })
                .collect(),
            // Its host and port: no command connects to it.
            amqp_url: format!("amqp://demo@{}", read(BROKER_ADDRESS)?),
            rabbitmq_api: none(),
            // They listen inside their own containers only.
            admin: BTreeMap::new(),
            admin_token: none(),
        };
        let terminal = Terminal::new(false);
        let proxies = read("DEMO_PROXY").map(Proxies::Remote);
        Some(Self { addresses, proxies, terminal, restarts: Mutex::default() })
    }

    /// Prints the line that does it, and waits until it was done.
    pub(crate) async fn act(&self, action: Action, part: &str) -> Result<()> {
        let container = container(part);
        let line = match action {
            Action::Kill => format!("docker compose kill -s SIGKILL {container}"),
            Action::Start => format!("docker compose start {container}"),
            Action::Pause => format!("docker compose pause {container}"),
            Action::Resume => format!("docker compose unpause {container}"),
        };
        self.terminal.print("");
        self.terminal.print(format!("  In another terminal:  {line}"));
        self.terminal.print("");
        let works = matches!(action, Action::Start | Action::Resume);
        eventually(&format!("`{line}`"), COPY_DEADLINE, async || {
            Ok((self.works(part).await == works).then_some(()))
        })
        .await?;
        if works {
            self.restarts.lock().unwrap_or_else(PoisonError::into_inner).push(part.to_owned());
        }
        Ok(())
    }

    /// Stands for a process id, which cannot be seen from here: `None` while the part does not answer, and another number
    /// after each restart.
    pub(crate) async fn pid(&self, part: &str) -> Option<u32> {
        if !self.works(part).await {
            return None;
        }
        let restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(restarts.iter().filter(|restarted| *restarted == part).count() + 1).ok()
    }

    async fn works(&self, part: &str) -> bool {
        works(&self.addresses, part).await
    }
}

/// Whether a part answers.
pub(crate) async fn works(addresses: &Addresses, part: &str) -> bool {
    let probe = async {
        match part {
            BROKER => {
                let greeting = addresses.brokers().map(|address| Box::pin(greets(address)));
                select_ok(greeting).await.map(drop)
            }
            DATABASE => {
                let mut connection = PgConnection::connect(&addresses.auditor_url).await?;
                connection.ping().await?;
                Ok(connection.close().await?)
            }
            service => http::get(&format!("{}/livez", addresses.url(service))).await.map(drop),
        }
    };
    timeout(PROBE_DEADLINE, probe).await.is_ok_and(|answer| answer.is_ok())
}

/// Whether a broker answers the AMQP protocol header. A frozen one accepts connections, and says nothing.
async fn greets(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
    stream.read_u8().await.context("the broker says nothing").map(drop)
}
