//! The whole system in containers: `docker compose` with the `compose.yaml` at the root.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use testbed::eventually;
use testbed::guard::AtEnd;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::target::{Target, Verb};
use crate::terminal::Terminal;

/// The first build compiles all dependencies, in a container, on however few cores.
const STARTED_WITHIN: Duration = Duration::from_secs(3_600);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A broker's start takes five seconds, or thirty on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct Compose {
    root: PathBuf,
    /// While something is broken: a guard that starts it again should this process be killed.
    guards: Mutex<Vec<(Target, AtEnd)>>,
    /// The containers' ids by service.
    ids: Mutex<HashMap<String, String>>,
}

impl Compose {
    pub(crate) fn new() -> Result<Self> {
        let root = testbed::workspace_root().context("compose.yaml is found in a checkout only")?;
        ensure!(root.join("compose.yaml").exists(), "there is no compose.yaml in {}", root.display());
        Ok(Self { root, guards: Mutex::default(), ids: Mutex::default() })
    }

    /// Builds the image if that is needed, starts everything, and waits until it is healthy.
    pub(crate) async fn up(&self, terminal: &Terminal) -> Result<()> {
        if testbed::image_is_present("outbox-shop").await {
            terminal.say("Bringing the image up to date and starting the containers …");
        } else {
            terminal.say(
                "Building the image in a container (the first time takes some minutes), then starting …",
            );
        }
        let mut up = self.compose(&["up", "--build", "--wait", "--wait-timeout", "180"]);
        // Whoever chose a port keeps it; else the usual one, or a free one where that is taken.
        if std::env::var_os("DEMO_PORT").is_none() && !testbed::is_free(8080) {
            up.env("DEMO_PORT", testbed::free_port()?.to_string());
        }
        // Progress goes to the terminal as it is; a machine reads our standard output only.
        up.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let status =
            timeout(STARTED_WITHIN, up.status()).await.context("docker compose up took an hour")??;
        ensure!(status.success(), "`docker compose up` failed ({status}); `docker compose logs` may say why");
        Ok(())
    }

    /// Stops and removes the containers; with `erase`, their data too.
    pub(crate) async fn down(&self, erase: bool) -> Result<()> {
        let mut args = vec!["down", "--remove-orphans"];
        if erase {
            args.push("--volumes");
        }
        run(self.compose(&args), "", BACK_WITHIN).await.map(drop)
    }

    /// Where orders are placed, or `None` if the system is not running.
    pub(crate) async fn orders_url(&self) -> Result<Option<String>> {
        let running =
            run(self.compose(&["ps", "-q", "--status", "running", "orders"]), "", ANSWER_WITHIN).await?;
        if running.trim().is_empty() {
            return Ok(None);
        }
        let address = run(self.compose(&["port", "orders", "8080"]), "", ANSWER_WITHIN).await?;
        Ok(Some(format!("http://{}", address.trim())))
    }

    pub(crate) async fn act(&self, verb: Verb, target: &Target) -> Result<()> {
        let service = service(target);
        match verb {
            Verb::Kill | Verb::Pause => {
                let guard = self.guard(verb, service)?;
                let args = if verb == Verb::Kill { vec!["kill", "-s", "SIGKILL"] } else { vec!["pause"] };
                run(self.compose(&[&args[..], &[service]].concat()), "", ANSWER_WITHIN).await?;
                self.guards.lock().unwrap_or_else(PoisonError::into_inner).push((target.clone(), guard));
            }
            Verb::Start | Verb::Resume => {
                let word = if verb == Verb::Start { "start" } else { "unpause" };
                run(self.compose(&[word, service]), "", BACK_WITHIN).await?;
                self.guards
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|(broken, _)| broken != target);
                let what = format!("{service} to be back");
                eventually(&what, BACK_WITHIN, async || Ok(self.is_back(target).await?.then_some(())))
                    .await?;
            }
        }
        Ok(())
    }

    /// The first process of a container, as the machine numbers it; `None` while it is stopped.
    pub(crate) async fn pid(&self, target: &Target) -> Result<Option<u32>> {
        let pid = self.inspect(service(target), "{{.State.Pid}}").await?;
        Ok(pid.parse().ok().filter(|&pid| pid != 0))
    }

    /// Runs a query that answers one value. PostgreSQL is not published: its own client, inside, asks for us.
    pub(crate) async fn sql(&self, login: &str, query: &str) -> Result<String> {
        let psql = format!("psql -XAtq -v ON_ERROR_STOP=1 -U {login} -d shop");
        Ok(self.exec("postgres", &psql, query).await?.trim().to_owned())
    }

    /// A consumer's metrics page. Only the API's port is published: `demo`, inside, reads it for us.
    pub(crate) async fn metrics(&self, service: &str, port: u16) -> Result<String> {
        self.exec("orders", &format!("demo fetch http://{service}:{port}/metrics"), "").await
    }

    /// A question to a service's operators' door. It is open on the container's own loopback only, and the token is in
    /// the container's environment: `demo`, inside, asks for us.
    pub(crate) async fn admin(&self, service: &str, path: &str, body: Option<&str>) -> Result<(u16, String)> {
        let variable = format!("{}_ADMIN_TOKEN", service.to_uppercase());
        let post = if body.is_some() { " --post" } else { "" };
        let fetch = format!("demo fetch --token-from {variable}{post} http://127.0.0.1:9080{path}");
        let answer = self.exec(service, &fetch, body.unwrap_or_default()).await?;
        let (status, body) = answer.split_once('\n').context("`demo fetch` said nothing")?;
        Ok((status.parse()?, body.to_owned()))
    }

    /// Whether a part does its work again. The broker's own health check looks every five seconds only, and starts
    /// an Erlang machine for it: an open port says the same at once.
    async fn is_back(&self, target: &Target) -> Result<bool> {
        match target {
            Target::Broker => {
                let connect = self.exec("rabbitmq", "timeout 2 bash -c :</dev/tcp/127.0.0.1/5672", "");
                let is_open = connect.await.is_ok();
                if !is_open {
                    // Each look starts a process in the container, on the cores that the broker needs just now.
                    sleep(Duration::from_millis(500)).await;
                }
                Ok(is_open)
            }
            Target::Database | Target::Service(_) => {
                let health = "{{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}";
                Ok(self.inspect(service(target), health).await? == "healthy")
            }
        }
    }

    /// Runs a command, whose words hold no blanks, in a service's container.
    async fn exec(&self, service: &str, command: &str, input: &str) -> Result<String> {
        let id = self.id(service).await?;
        let mut exec = Command::new("docker");
        exec.args(["exec", "-i", &id]).args(command.split(' '));
        run(exec, input, ANSWER_WITHIN).await
    }

    async fn inspect(&self, service: &str, format: &str) -> Result<String> {
        let id = self.id(service).await?;
        let mut inspect = Command::new("docker");
        inspect.args(["inspect", "--format", format, &id]);
        Ok(run(inspect, "", ANSWER_WITHIN).await?.trim().to_owned())
    }

    /// A service's container. It stays the same when it is killed and started, and `docker compose` takes half a
    /// second to find it: too long to ask each time something is looked at.
    async fn id(&self, service: &str) -> Result<String> {
        let known = self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(service).cloned();
        if let Some(id) = known {
            return Ok(id);
        }
        let id = run(self.compose(&["ps", "-a", "-q", service]), "", ANSWER_WITHIN).await?.trim().to_owned();
        ensure!(!id.is_empty(), "there is no container for {service}");
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(service.to_owned(), id.clone());
        Ok(id)
    }

    fn guard(&self, verb: Verb, service: &str) -> Result<AtEnd> {
        let word = if verb == Verb::Kill { "start" } else { "unpause" };
        let script = r#"docker compose -f "$1" "$2" "$3""#;
        let file = self.root.join("compose.yaml");
        AtEnd::run(script, &[file.as_os_str(), word.as_ref(), service.as_ref()])
    }

    fn compose(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("compose").arg("-f").arg(self.root.join("compose.yaml")).args(args);
        command
    }
}

fn service(target: &Target) -> &str {
    match target {
        Target::Broker => "rabbitmq",
        Target::Database => "postgres",
        Target::Service(name) => name,
    }
}

async fn run(mut command: Command, input: &str, deadline: Duration) -> Result<String> {
    let shown = format!("{:?}", command.as_std()).replace('"', "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("the `docker` command is not installed")?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // The reader may leave early; its exit code tells more than a broken pipe.
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
