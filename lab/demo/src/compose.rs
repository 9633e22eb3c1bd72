//! The whole system in containers: `docker compose` with the `compose.yaml` at the root.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use testbed::eventually;
use testbed::guard::AtExit;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::part::{Action, BROKER, container, count_queued};
use crate::terminal::Terminal;

/// The first build compiles all dependencies in a container.
const START_DEADLINE: Duration = Duration::from_secs(3_600);
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);
/// A broker starts within five seconds, or thirty on a busy machine.
const REPAIR_DEADLINE: Duration = Duration::from_secs(120);
const BROKER_CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Compose {
    root: PathBuf,
    /// For each broken part a guard that repairs it if this process is killed.
    guards: Mutex<Vec<(String, AtExit)>>,
    /// The container ids that are known, by service.
    ids: Mutex<HashMap<String, String>>,
}

impl Compose {
    pub(crate) fn new() -> Result<Self> {
        let root = testbed::workspace_root().context("compose.yaml is only in a checkout")?;
        ensure!(root.join("compose.yaml").exists(), "there is no compose.yaml in {}", root.display());
        Ok(Self { root, guards: Mutex::default(), ids: Mutex::default() })
    }

    /// Builds the images if that is needed, starts everything, and waits until it is healthy.
    pub(crate) async fn up(&self, terminal: &Terminal) -> Result<()> {
        if testbed::image_is_present("outbox-shop-demo").await {
            terminal.print("Updating the images and starting the containers …");
        } else {
            terminal.print(
                "Building the images (the first time takes some minutes), then starting the containers …",
            );
        }
        let mut up = self.compose(&["up", "--build", "--wait", "--wait-timeout", "180"]);
        // `DEMO_PORT` decides. Without it: 8080, or a free port if that one is in use.
        if std::env::var_os("DEMO_PORT").is_none() && !testbed::is_free(8080) {
            up.env("DEMO_PORT", testbed::free_port()?.to_string());
        }
        // Docker's progress goes to standard error. Standard output is for our own document.
        up.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status = timeout(START_DEADLINE, up.status())
            .await
            .context("`docker compose up` took more than an hour")??;
        ensure!(
            status.success(),
            "`docker compose up` failed ({status}); `docker compose logs` may show why"
        );
        Ok(())
    }

    /// Stops and removes the containers; with `erase`, their data too.
    pub(crate) async fn down(&self, erase: bool) -> Result<()> {
        let mut args = vec!["down", "--remove-orphans"];
        if erase {
            args.push("--volumes");
        }
        run(self.compose(&args), "", REPAIR_DEADLINE).await.map(drop)
    }

    /// The order service's address, or `None` if the system is not running.
    pub(crate) async fn orders_url(&self) -> Result<Option<String>> {
        let running =
            run(self.compose(&["ps", "-q", "--status", "running", "orders"]), "", COMMAND_DEADLINE).await?;
        if running.trim().is_empty() {
            return Ok(None);
        }
        let address = run(self.compose(&["port", "orders", "8080"]), "", COMMAND_DEADLINE).await?;
        Ok(Some(format!("http://{}", address.trim())))
    }

    pub(crate) async fn act(&self, action: Action, part: &str) -> Result<()> {
        let service = container(part);
        match action {
            Action::Kill | Action::Pause => {
                let guard = self.guard(action, service)?;
                let args = if action == Action::Kill { vec!["kill", "-s", "SIGKILL"] } else { vec!["pause"] };
                run(self.compose(&[&args[..], &[service]].concat()), "", COMMAND_DEADLINE).await?;
                self.guards.lock().unwrap_or_else(PoisonError::into_inner).push((part.to_owned(), guard));
            }
            Action::Start | Action::Resume => {
                let word = if action == Action::Start { "start" } else { "unpause" };
                run(self.compose(&[word, service]), "", REPAIR_DEADLINE).await?;
                self.guards
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|(broken, _)| broken != part);
                let what = format!("{service} to work again");
                eventually(&what, REPAIR_DEADLINE, async || Ok(self.works_again(part).await?.then_some(())))
                    .await?;
            }
        }
        Ok(())
    }

    /// The id of a container's first process on this machine, or `None` while the container is stopped.
    pub(crate) async fn pid(&self, part: &str) -> Result<Option<u32>> {
        let pid = self.inspect(container(part), "{{.State.Pid}}").await?;
        Ok(pid.parse().ok().filter(|&pid| pid != 0))
    }

    /// Whether a part's container runs and is not paused.
    pub(crate) async fn runs(&self, part: &str) -> Result<bool> {
        Ok(self.inspect(container(part), "{{.State.Running}} {{.State.Paused}}").await? == "true false")
    }

    /// Runs a query that returns one value. PostgreSQL's port is not published, so `psql` runs in the container.
    pub(crate) async fn sql(&self, login: &str, query: &str) -> Result<String> {
        let psql = format!("psql -XAtq -v ON_ERROR_STOP=1 -U {login} -d shop");
        Ok(self.exec("postgres", &psql, query).await?.trim().to_owned())
    }

    /// Reads a service's metrics page.
    pub(crate) async fn metrics(&self, service: &str) -> Result<String> {
        let (status, page) = self.request(service, "/metrics", None).await?;
        ensure!(status == 200, "{service} answered {status}: {page}");
        Ok(page)
    }

    /// How many messages are in the services' queues: ready, or held by a consumer.
    pub(crate) async fn queued(&self) -> Result<u64> {
        let list = "rabbitmqctl -q list_queues -p shop name messages state --formatter json";
        let queues: Vec<Value> = serde_json::from_str(&self.exec("rabbitmq", list, "").await?)?;
        count_queued(queues.iter().map(|queue| {
            // The number of a queue without a leader is 0.
            let messages = queue["messages"].as_u64().filter(|_| queue["state"] == "running");
            (queue["name"].as_str().unwrap_or_default(), messages)
        }))
    }

    /// Sends a request to a service, and returns the status and the body of the answer. Only the order service's port is published,
    /// the admin API listens on the container's own loopback, and its token is in the container's environment. So the service's
    /// own program sends it, in the container.
    pub(crate) async fn request(
        &self,
        service: &str,
        path: &str,
        body: Option<&str>,
    ) -> Result<(u16, String)> {
        let command = match body {
            Some(_) => format!("{service} post {path} --operator demo"),
            None => format!("{service} get {path}"),
        };
        let answer = self.exec(service, &command, body.unwrap_or_default()).await?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no head")?;
        let status = head.split(' ').nth(1).context("the answer has no status")?;
        Ok((status.parse()?, body.to_owned()))
    }

    /// Whether a part works again. For the broker an open port is enough: its own health check runs every five seconds
    /// only, and starts an Erlang VM each time.
    async fn works_again(&self, part: &str) -> Result<bool> {
        match part {
            BROKER => {
                let connect = self.exec("rabbitmq", "timeout 2 bash -c :</dev/tcp/127.0.0.1/5672", "");
                let is_open = connect.await.is_ok();
                if !is_open {
                    // Each check starts a process in the container, and takes CPU time that the starting broker needs.
                    sleep(BROKER_CHECK_INTERVAL).await;
                }
                Ok(is_open)
            }
            _ => {
                let health = "{{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}";
                Ok(self.inspect(container(part), health).await? == "healthy")
            }
        }
    }

    /// Runs a command in a service's container. Blanks separate its words.
    async fn exec(&self, service: &str, command: &str, input: &str) -> Result<String> {
        let id = self.id(service).await?;
        let mut exec = Command::new("docker");
        exec.args(["exec", "-i", &id]).args(command.split(' '));
        run(exec, input, COMMAND_DEADLINE).await
    }

    async fn inspect(&self, service: &str, format: &str) -> Result<String> {
        let id = self.id(service).await?;
        let mut inspect = Command::new("docker");
        inspect.args(["inspect", "--format", format, &id]);
        Ok(run(inspect, "", COMMAND_DEADLINE).await?.trim().to_owned())
    }

    /// The id of a service's container. It is remembered, because it stays the same over a kill and a start, and
    /// `docker compose` takes half a second to find it.
    async fn id(&self, service: &str) -> Result<String> {
        let known = self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(service).cloned();
        if let Some(id) = known {
            return Ok(id);
        }
        let id =
            run(self.compose(&["ps", "-a", "-q", service]), "", COMMAND_DEADLINE).await?.trim().to_owned();
        ensure!(!id.is_empty(), "{service} has no container");
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(service.to_owned(), id.clone());
        Ok(id)
    }

    fn guard(&self, action: Action, service: &str) -> Result<AtExit> {
        let word = if action == Action::Kill { "start" } else { "unpause" };
        let script = r#"docker compose -f "$1" "$2" "$3""#;
        let file = self.root.join("compose.yaml");
        AtExit::run(script, &[file.as_os_str(), word.as_ref(), service.as_ref()])
    }

    fn compose(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("compose").arg("-f").arg(self.root.join("compose.yaml")).args(args);
        command
    }
}

async fn run(mut command: Command, input: &str, deadline: Duration) -> Result<String> {
    let shown = format!("{:?}", command.as_std()).replace('"', "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("the `docker` command is not installed")?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // The program may end before it has read everything. Its exit code says more than a broken pipe.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let work = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = timeout(deadline, work).await;
    let output = output.with_context(|| format!("`{shown}` took more than {} s", deadline.as_secs()))??;
    if !output.status.success() {
        bail!("`{shown}`: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
