//! A RabbitMQ broker of one's own.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::container::{Container, IMAGES, Recipe};
use crate::home::Home;
use crate::host::Host;
use crate::{free_port, local_rabbitmq};

pub(crate) const USER: &str = "shop";
pub(crate) const PASSWORD: &str = "shop";
pub(crate) const VHOST: &str = "shop";

/// Five seconds are usual; two cores that also compile take longer.
const READY_WITHIN: Duration = Duration::from_secs(120);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A RabbitMQ broker to be killed, paused and restarted. It keeps its ports, and its durable queues until it is
/// dropped.
#[derive(Debug)]
pub struct Rabbitmq {
    host: Host,
    port: u16,
    api_port: u16,
}

impl Rabbitmq {
    /// A new broker that takes connections, with an empty virtual host `shop`, where [`Home::choose`] says.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// The same, where you say.
    pub async fn private_in(home: Home) -> Result<Self> {
        let (port, api_port) = (free_port()?, free_port()?);
        let host = match home {
            Home::Local => {
                let server = local_rabbitmq::prepare(port, api_port)?;
                server.start()?;
                Host::Local(Box::new(server))
            }
            Home::Docker => {
                let recipe = Recipe {
                    name: format!("testbed-rabbitmq-{}-{port}", std::process::id()),
                    image: IMAGES[1],
                    env: vec![
                        ("RABBITMQ_DEFAULT_USER", USER.to_owned()),
                        ("RABBITMQ_DEFAULT_PASS", PASSWORD.to_owned()),
                        ("RABBITMQ_DEFAULT_VHOST", VHOST.to_owned()),
                    ],
                    args: Vec::new(),
                    ports: vec![(port, 5672), (api_port, 15672)],
                };
                Host::Container(Container::start_new(recipe).await?)
            }
        };
        let broker = Self { host, port, api_port };
        broker.ready().await?;
        Ok(broker)
    }

    /// The AMQP URL of the virtual host `shop`.
    pub fn url(&self) -> String {
        format!("{}/{VHOST}", self.base_url())
    }

    /// The AMQP URL without a virtual host.
    pub fn base_url(&self) -> String {
        format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{}", self.port)
    }

    /// The management API's URL. Its statistics are seconds old: for how many messages wait, ask by AMQP.
    pub fn api_url(&self) -> String {
        format!("http://{USER}:{PASSWORD}@127.0.0.1:{}", self.api_port)
    }

    /// SIGKILL.
    pub async fn kill(&self) -> Result<()> {
        self.host.kill().await.context("cannot kill RabbitMQ")
    }

    /// Starts it again after [`Rabbitmq::kill`] or [`Rabbitmq::stop`]; returns when it takes connections.
    pub async fn start(&self) -> Result<()> {
        self.host.start().await.context("cannot start RabbitMQ")?;
        self.ready().await
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub async fn pause(&self) -> Result<()> {
        self.host.pause().await.context("cannot pause RabbitMQ")
    }

    /// Undoes [`Rabbitmq::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.host.resume().await.context("cannot resume RabbitMQ")
    }

    /// Sets the memory from which on the broker reads nothing any more from those who publish. One byte is an alarm at
    /// once, [`Rabbitmq::NO_ALARM`] ends it.
    pub async fn set_memory_limit(&self, limit: &str) -> Result<()> {
        let node = format!("testbed-{}@localhost", self.port);
        let set = ["set_vm_memory_high_watermark", "absolute", limit];
        match &self.host {
            Host::Local(server) => server.tool("rabbitmqctl", &[&["-n", &node], &set[..]].concat()).await,
            Host::Container(container) => container.tool("rabbitmqctl", &set).await,
        }
    }

    /// The limit that it starts with.
    pub const NO_ALARM: &'static str = "1GB";

    /// An orderly shutdown.
    pub async fn stop(&self) -> Result<()> {
        self.host.stop().await.context("cannot stop RabbitMQ")
    }

    /// The broker's process id on this machine, or `None` while it is down.
    pub async fn pid(&self) -> Option<u32> {
        self.host.pid().await
    }

    /// Whether it takes AMQP connections at this moment.
    pub async fn answers(&self) -> bool {
        amqp_greeting(self.port).await.is_ok()
    }

    async fn ready(&self) -> Result<()> {
        self.host
            .ready("RabbitMQ", READY_WITHIN, || async {
                amqp_greeting(self.port).await?;
                let api = reqwest::Client::new().get(format!("{}/api/whoami", self.api_url()));
                api.timeout(ANSWER_WITHIN).send().await?.error_for_status()?;
                Ok(())
            })
            .await
    }
}

/// Says hello in AMQP and waits for the first byte of the answer, a method frame (1): an open port proves nothing,
/// the container engine's proxy opens it before the broker is there.
async fn amqp_greeting(port: u16) -> Result<()> {
    let greeting = timeout(ANSWER_WITHIN, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    });
    let first = greeting.await.context("no answer to the AMQP greeting")??;
    ensure!(first == 1, "it does not speak AMQP 0-9-1");
    Ok(())
}
