//! The three services, and the payment provider that one of them needs, as child processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use uuid::Uuid;

use crate::eventually::eventually_send;
use crate::guard::{AtEnd, Leash, signal_all, with_descendants};
use crate::local::PrivateDir;
use crate::system_options::{Instances, SystemOptions};
use crate::{binaries, free_port};

/// The services promise to be gone ten seconds after SIGTERM.
const STOPPED_WITHIN: Duration = Duration::from_secs(12);
const KILLED_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Running services, and the provider. The first process of each is called by the service's name, the others `orders-2`, `orders-3`, …
/// A process that is started again has the same port and settings. All are killed when the value is dropped.
#[derive(Debug)]
pub struct System {
    members: BTreeMap<String, Member>,
    admin_token: String,
    logs: PathBuf,
    _private: Option<PrivateDir>,
}

#[derive(Debug)]
struct Member {
    command: Command,
    url: String,
    admin_url: String,
    log: PathBuf,
    process: Mutex<Option<Leash>>,
    /// While paused: should we die, the process must not stay behind, stopped for ever.
    paused: Mutex<Option<AtEnd>>,
}

impl System {
    /// Builds the services if that is needed, and starts them. Does not wait until they are ready: see
    /// [`System::wait_ready`].
    pub async fn start(options: SystemOptions) -> Result<Self> {
        if options.drill {
            binaries::build_drill_services(false).await?;
        } else if options.variant.is_some() {
            binaries::build_variants(false).await?;
        } else {
            binaries::build_services(false).await?;
        }
        let (logs, private) = match &options.log_dir {
            Some(dir) => (dir.clone(), None),
            None => {
                let dir = PrivateDir::new("system", None)?;
                (dir.path().to_owned(), Some(dir))
            }
        };
        std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let Instances { orders, inventory, billing } = options.instances;
        let admin_token = Uuid::new_v4().simple().to_string();
        let mut members = BTreeMap::new();
        // Not one of ours, and so never a drill build.
        let provider = Member::provider(&options, &logs)?;
        provider.start()?;
        let provider_url = provider.url.clone();
        members.insert("provider".to_owned(), provider);
        for (service, count) in [("orders", orders), ("inventory", inventory), ("billing", billing)] {
            for number in 1..=count {
                let name = if number == 1 { service.to_owned() } else { format!("{service}-{number}") };
                let mut member = Member::new(service, &name, &options, &admin_token, &logs)?;
                member.command.env("BILLING_PROVIDER_URL", &provider_url);
                member.start()?;
                members.insert(name, member);
            }
        }
        Ok(Self { members, admin_token, logs, _private: private })
    }

    /// Where orders are placed: the first `orders` process, without a trailing slash.
    pub fn orders_url(&self) -> String {
        self.url("orders").unwrap_or_default().to_owned()
    }

    /// Where a process answers (`/metrics`, `/readyz`), without a trailing slash.
    pub fn url(&self, name: &str) -> Result<&str> {
        Ok(&self.member(name)?.url)
    }

    /// Where a process serves its operators, without a trailing slash.
    pub fn admin_url(&self, name: &str) -> Result<&str> {
        let url = &self.member(name)?.admin_url;
        ensure!(!url.is_empty(), "{name} has no door for operators");
        Ok(url)
    }

    /// What they have to show: made for this system, and known to nobody else.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// The names of all processes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The directory with the logs, one file per process.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// What a process has written so far.
    pub fn log(&self, name: &str) -> Result<String> {
        let log = &self.member(name)?.log;
        std::fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))
    }

    /// A process's id, or `None` while it is not running.
    pub fn pid(&self, name: &str) -> Option<u32> {
        let mut process = self.member(name).ok()?.process.lock().unwrap_or_else(PoisonError::into_inner);
        let process = process.as_mut()?;
        process.ended().ok()?.is_none().then(|| process.pid())
    }

    /// SIGKILL.
    pub async fn kill(&self, name: &str) -> Result<()> {
        let mut process = self.member(name)?.take().with_context(|| format!("{name} is not running"))?;
        process.signal("KILL")?;
        process.wait(KILLED_WITHIN).await.with_context(|| format!("cannot kill {name}"))?;
        Ok(())
    }

    /// SIGTERM, and its exit code once it has left (`None` if a signal ended it).
    pub async fn terminate(&self, name: &str) -> Result<Option<i32>> {
        let mut process = self.member(name)?.take().with_context(|| format!("{name} is not running"))?;
        process.signal_one("TERM")?;
        let ended = process.wait(STOPPED_WITHIN).await.with_context(|| format!("{name} ignores SIGTERM"))?;
        Ok(ended.code())
    }

    /// SIGSTOP: it keeps its connections and does nothing.
    pub fn pause(&self, name: &str) -> Result<()> {
        let member = self.member(name)?;
        let pid = self.pid(name).with_context(|| format!("{name} is not running"))?;
        let family = with_descendants(pid)?;
        let wake = AtEnd::resume(&family)?;
        signal_all("STOP", &family)?;
        *member.paused.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
        Ok(())
    }

    /// Undoes [`System::pause`].
    pub fn resume(&self, name: &str) -> Result<()> {
        // The guard's own clean-up is the signal that is wanted.
        self.member(name)?.paused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pid = self.pid(name).with_context(|| format!("{name} is not running"))?;
        signal_all("CONT", &[pid])
    }

    /// Starts a process again, after it was killed or has ended.
    pub async fn start_again(&self, name: &str) -> Result<()> {
        self.member(name)?.start().with_context(|| format!("cannot start {name}"))
    }

    /// Waits until every process that runs answers `/readyz` with 200. The error names those that do not, with the
    /// end of their logs.
    pub async fn wait_ready(&self, deadline: Duration) -> Result<()> {
        for (name, member) in &self.members {
            if self.pid(name).is_none() {
                bail!("{name} has ended; {}", crate::guard::last_lines(&member.log, 12));
            }
            let ready = format!("{}/readyz", member.url);
            let waited = eventually_send(&format!("{name} to be ready"), deadline, || async {
                if self.pid(name).is_none() {
                    return Ok(Some(false));
                }
                let answer = reqwest::Client::new().get(&ready).timeout(ANSWER_WITHIN).send().await?;
                match answer.status().as_u16() {
                    200 => Ok(Some(true)),
                    other => bail!("/readyz answers {other}: {}", answer.text().await?.trim()),
                }
            })
            .await;
            match waited {
                Ok(true) => {}
                Ok(false) => bail!("{name} has ended; {}", crate::guard::last_lines(&member.log, 12)),
                Err(late) => bail!("{late:#}; {}", crate::guard::last_lines(&member.log, 12)),
            }
        }
        Ok(())
    }

    /// SIGTERM to all that run, then waits for them. An error names those that had to be killed, or that did not
    /// leave with exit code 0.
    pub async fn stop(&self) -> Result<()> {
        let mut leaving = Vec::new();
        for (name, member) in &self.members {
            if self.pid(name).is_some()
                && let Some(process) = member.take()
            {
                process.signal_one("CONT")?;
                process.signal_one("TERM")?;
                leaving.push((name, process));
            }
        }
        let mut unruly = Vec::new();
        for (name, mut process) in leaving {
            match process.wait(STOPPED_WITHIN).await {
                Ok(ended) if ended.success() => {}
                Ok(ended) => unruly.push(format!("{name} left with {ended}; {}", process.last_words())),
                // Dropping the leash kills it.
                Err(late) => unruly.push(format!("{name}: {late:#}")),
            }
        }
        if !unruly.is_empty() {
            bail!("{}", unruly.join("\n"));
        }
        Ok(())
    }

    fn member(&self, name: &str) -> Result<&Member> {
        let known = || self.names().collect::<Vec<_>>().join(", ");
        self.members
            .get(name)
            .with_context(|| format!("no process is called `{name}`; there are: {}", known()))
    }
}

impl Member {
    /// The stand-in for the payment provider: a database and an address is all that it has to be told.
    fn provider(options: &SystemOptions, logs: &Path) -> Result<Self> {
        let mut command = clean_command("provider", "PROVIDER_")?;
        let port = free_port()?;
        command.env("PROVIDER_DATABASE_URL", &options.database.provider);
        command.env("PROVIDER_HTTP_ADDRESS", format!("127.0.0.1:{port}"));
        command.envs(options.env.iter().map(|(variable, value)| (variable, value)));
        let (url, log) = (format!("http://127.0.0.1:{port}"), logs.join("provider.log"));
        let (process, paused) = (Mutex::default(), Mutex::default());
        Ok(Self { command, url, admin_url: String::new(), log, process, paused })
    }

    fn new(
        service: &str,
        name: &str,
        options: &SystemOptions,
        admin_token: &str,
        logs: &Path,
    ) -> Result<Self> {
        let port =
            if name == "orders" && options.orders_port != 0 { options.orders_port } else { free_port()? };
        let database = match service {
            "orders" => &options.database.orders,
            "inventory" => &options.database.inventory,
            _ => &options.database.billing,
        };
        let prefix = service.to_uppercase();
        let variant = options.variant.filter(|_| service == "orders");
        let binary = match variant {
            Some(_) => "orders-variant".to_owned(),
            None if options.drill => format!("{service}-drill"),
            None => service.to_owned(),
        };
        let mut command = clean_command(&binary, &format!("{prefix}_"))?;
        command.envs(variant.map(|variant| ("VARIANT", variant)));
        command.env(format!("{prefix}_DATABASE_URL"), database);
        command.env(format!("{prefix}_AMQP_URL"), &options.amqp_url);
        command.env(format!("{prefix}_HTTP_ADDRESS"), format!("127.0.0.1:{port}"));
        let admin = format!("127.0.0.1:{}", free_port()?);
        command.env(format!("{prefix}_ADMIN_ADDRESS"), &admin);
        command.env(format!("{prefix}_ADMIN_TOKEN"), admin_token);
        command.envs(options.env.iter().map(|(variable, value)| (variable, value)));
        let log = logs.join(format!("{name}.log"));
        let url = format!("http://127.0.0.1:{port}");
        // A variant has no such door.
        let admin_url = variant.map_or(format!("http://{admin}"), |_| String::new());
        Ok(Self { command, url, admin_url, log, process: Mutex::default(), paused: Mutex::default() })
    }

    fn start(&self) -> Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process.as_mut()
            && process.ended()?.is_none()
        {
            bail!("it is already running, as process {}", process.pid());
        }
        *process = Some(Leash::spawn(&self.command, &self.log)?);
        Ok(())
    }

    fn take(&self) -> Option<Leash> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A service's executable, without the settings of the surrounding shell: they are not meant for this system.
fn clean_command(binary: &str, prefix: &str) -> Result<Command> {
    let mut command = Command::new(binaries::find(binary)?);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with(prefix) {
            command.env_remove(variable);
        }
    }
    Ok(command)
}
