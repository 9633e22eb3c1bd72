//! The system as a container of its network sees it (`docker compose run --rm demo …`): addresses from the environment,
//! and no way to kill anything. Who has the engine injects the faults: the line to copy is printed.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::{Connection as _, PgConnection};
use testbed::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http;
use crate::proxies::Proxies;
use crate::state::{Addresses, AdminUrls, LOGINS};
use crate::target::{Action, Target};
use crate::terminal::Terminal;

/// How long a person may take to copy a line.
const COPY_DEADLINE: Duration = Duration::from_secs(180);
const PROBE_DEADLINE: Duration = Duration::from_secs(2);
/// The broker's address: it has no page of its own here.
const BROKER: &str = "DEMO_BROKER_ADDRESS";

#[derive(Debug)]
pub(crate) struct NetworkSystem {
    pub(crate) addresses: Addresses,
    broker: String,
    /// Only in the lab's network.
    pub(crate) proxies: Option<Proxies>,
    terminal: Terminal,
    /// The parts that were seen to work again after they did not.
    restarts: Mutex<Vec<Target>>,
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
            amqp_url: none(),
            rabbitmq_api: none(),
            // They listen inside their own containers only.
            admin: AdminUrls { orders: none(), inventory: none(), billing: none() },
            admin_token: none(),
        };
        let (broker, terminal) = (read(BROKER)?, Terminal::new(false));
        let proxies = read("DEMO_PROXY").map(Proxies::Remote);
        Some(Self { addresses, broker, proxies, terminal, restarts: Mutex::default() })
    }

    /// Prints the line that does it, and waits until it was done.
    pub(crate) async fn act(&self, action: Action, target: &Target) -> Result<()> {
        let container = target.container();
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
            Ok((self.works(target).await == works).then_some(()))
        })
        .await?;
        if works {
            self.restarts.lock().unwrap_or_else(PoisonError::into_inner).push(target.clone());
        }
        Ok(())
    }

    /// Stands for a process id, which cannot be seen from here: `None` while the part does not answer, and another number
    /// after each restart.
    pub(crate) async fn pid(&self, target: &Target) -> Option<u32> {
        if !self.works(target).await {
            return None;
        }
        let restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(restarts.iter().filter(|restarted| *restarted == target).count() + 1).ok()
    }

    pub(crate) async fn works(&self, target: &Target) -> bool {
        works(&self.addresses, &self.broker, target).await
    }
}

/// Whether a part answers. `broker` is its host and port.
pub(crate) async fn works(addresses: &Addresses, broker: &str, target: &Target) -> bool {
    let probe = async {
        match target {
            Target::Broker => greets(broker).await,
            Target::Database => {
                let mut connection = PgConnection::connect(&addresses.auditor_url).await?;
                connection.ping().await?;
                Ok(connection.close().await?)
            }
            Target::Service(name) => {
                let url = match name.as_str() {
                    "provider" => &addresses.provider_url,
                    service => addresses.url(service),
                };
                http::get(&format!("{url}/livez")).await.map(drop)
            }
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
