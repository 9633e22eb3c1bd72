//! A private RabbitMQ broker.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use uuid::Uuid;

use crate::container::{Container, ContainerSpec, RABBITMQ_IMAGE};
use crate::home::Home;
use crate::local_rabbitmq;
use crate::ports::free_port;
use crate::server::Server;
use crate::server_settings::{RABBITMQ_USER as USER, RABBITMQ_VHOST as VHOST};

/// A start usually takes five seconds, and longer while two cores also compile.
const READY_DEADLINE: Duration = Duration::from_secs(120);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A RabbitMQ broker that the caller can kill, pause and restart. It keeps its ports and its durable queues until it is
/// dropped.
#[derive(Debug)]
pub struct Rabbitmq {
    server: Server,
    port: u16,
    api_port: u16,
    password: String,
}

impl Rabbitmq {
    /// The memory limit that the broker starts with. See [`Rabbitmq::set_memory_limit`].
    pub const NO_ALARM: &'static str = "1GB";

    /// Starts a new broker where [`Home::choose`] says, with an empty virtual host `shop`, and waits until it accepts
    /// connections.
    pub async fn private() -> Result<Self> {
        Self::private_in(Home::choose().await?).await
    }

    /// Like [`Rabbitmq::private`], but in `home`.
    pub async fn private_in(home: Home) -> Result<Self> {
        let (port, api_port) = (free_port()?, free_port()?);
        // Who has it can publish any event: other users of this machine must not be able to guess it.
        let password = Uuid::new_v4().simple().to_string();
        let server = match home {
            Home::Local => {
                let server = local_rabbitmq::create(port, api_port, &password)?;
                server.process.start()?;
                Server::Local(Box::new(server))
            }
            Home::Docker => {
                let spec = ContainerSpec {
                    name: format!("testbed-rabbitmq-{}-{port}", std::process::id()),
                    image: RABBITMQ_IMAGE,
                    env: vec![
                        ("RABBITMQ_DEFAULT_USER", USER.to_owned()),
                        ("RABBITMQ_DEFAULT_PASS", password.clone()),
                        ("RABBITMQ_DEFAULT_VHOST", VHOST.to_owned()),
                    ],
                    args: Vec::new(),
                    ports: vec![(port, 5672), (api_port, 15672)],
                };
                Server::Container(Container::start_new(spec).await?)
            }
        };
        let broker = Self { server, port, api_port, password };
        broker.wait_ready().await?;
        Ok(broker)
    }

    /// The AMQP URL of the virtual host `shop`.
    pub fn url(&self) -> String {
        format!("{}/{VHOST}", self.base_url())
    }

    /// The AMQP URL without a virtual host.
    pub fn base_url(&self) -> String {
        format!("amqp://{USER}:{}@127.0.0.1:{}", self.password, self.port)
    }

    /// The management API's URL. Its statistics are seconds old: to count the messages in a queue, use AMQP.
    pub fn api_url(&self) -> String {
        format!("http://{USER}:{}@127.0.0.1:{}", self.password, self.api_port)
    }

    /// Sends SIGKILL to the broker.
    pub async fn kill(&self) -> Result<()> {
        self.server.kill().await.context("failed to kill RabbitMQ")
    }

    /// Starts the broker again after [`Rabbitmq::kill`] or [`Rabbitmq::stop`], and waits until it accepts connections.
    pub async fn start(&self) -> Result<()> {
        self.server.start().await.context("failed to start RabbitMQ")?;
        self.wait_ready().await
    }

    /// Sends SIGSTOP: connections stay open and the broker does not answer.
    pub async fn pause(&self) -> Result<()> {
        self.server.pause().await.context("failed to pause RabbitMQ")
    }

    /// Undoes [`Rabbitmq::pause`].
    pub async fn resume(&self) -> Result<()> {
        self.server.resume().await.context("failed to resume RabbitMQ")
    }

    /// Sets the memory use above which the broker raises an alarm: it then reads nothing more from publishers. One byte
    /// raises the alarm at once; [`Rabbitmq::NO_ALARM`] clears it.
    pub async fn set_memory_limit(&self, limit: &str) -> Result<()> {
        let set = ["set_vm_memory_high_watermark", "absolute", limit];
        self.rabbitmqctl(&set).await.context("failed to set RabbitMQ's memory limit")
    }

    /// Suspends the process that leads a quorum queue of the virtual host `shop`: the broker answers, and the queue takes
    /// and confirms nothing. With `false` it goes on.
    pub async fn suspend_queue(&self, queue: &str, suspend: bool) -> Result<()> {
        let call = if suspend { "suspend" } else { "resume" };
        let expression = format!("ok = sys:{call}({{'shop_{queue}', node()}}).");
        self.rabbitmqctl(&["eval", &expression]).await.context("failed to suspend or resume a queue")
    }

    async fn rabbitmqctl(&self, arguments: &[&str]) -> Result<()> {
        let node = format!("testbed-{}@localhost", self.port);
        match &self.server {
            Server::Local(server) => server.tool("rabbitmqctl", &[&["-n", &node], arguments].concat()).await,
            Server::Container(container) => container.tool("rabbitmqctl", arguments).await,
        }
    }

    /// Shuts the broker down in order.
    pub async fn stop(&self) -> Result<()> {
        self.server.stop().await.context("failed to stop RabbitMQ")
    }

    /// The broker's process id on this machine, or `None` while it does not run.
    pub async fn pid(&self) -> Option<u32> {
        self.server.pid().await
    }

    /// Whether the broker accepts AMQP connections at this moment.
    pub async fn answers(&self) -> bool {
        check_amqp(self.port).await.is_ok()
    }

    async fn wait_ready(&self) -> Result<()> {
        self.server
            .wait_ready("RabbitMQ", READY_DEADLINE, || async {
                check_amqp(self.port).await?;
                let api = reqwest::Client::new().get(format!("{}/api/whoami", self.api_url()));
                api.timeout(PROBE_TIMEOUT).send().await?.error_for_status()?;
                Ok(())
            })
            .await
    }
}

/// Sends the AMQP protocol header and checks that the reply begins with a method frame (1).
///
/// An open port proves nothing: the container engine's proxy accepts connections for a broker that is still starting.
async fn check_amqp(port: u16) -> Result<()> {
    let reply = timeout(PROBE_TIMEOUT, async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    });
    let first = reply.await.context("no reply to the AMQP protocol header")??;
    ensure!(first == 1, "the reply is not AMQP 0-9-1");
    Ok(())
}
