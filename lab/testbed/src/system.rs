//! The three services and the payment provider as child processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use uuid::Uuid;

use crate::binaries;
use crate::command::{copy_surroundings, remove_settings};
use crate::guard::{signal_all, with_descendants};
use crate::ports::free_port;
use crate::private_dir::PrivateDir;
use crate::restartable_process::RestartableProcess;
use crate::system_options::{Instances, SystemOptions};

/// A service exits within ten seconds after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(12);

/// The running services and the payment provider. All are killed when the value is dropped.
///
/// The first process of a service has the service's name, the others are `orders-2`, `orders-3`, … A process that is
/// started again keeps its port and settings.
#[derive(Debug)]
pub struct System {
    members: BTreeMap<String, Member>,
    admin_token: String,
    logs: PathBuf,
    _private: Option<PrivateDir>,
}

#[derive(Debug)]
struct Member {
    process: RestartableProcess,
    url: String,
    /// The payment provider and the variants have no admin API.
    admin_url: Option<String>,
}

impl System {
    /// Builds the services if they are not up to date, and starts them. Does not wait until they are ready: see
    /// [`System::wait_ready`].
    pub async fn start(options: SystemOptions) -> Result<Self> {
        if options.setup.lab || options.setup.variant.is_some() {
            binaries::build_lab(false).await?;
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
        fs::create_dir_all(&logs).with_context(|| format!("failed to create {}", logs.display()))?;
        let admin_token = Uuid::new_v4().simple().to_string();
        let mut system = Self { members: BTreeMap::new(), admin_token, logs, _private: private };
        let Instances { orders, inventory, billing } = options.setup.instances;
        // The provider is first, because billing gets its address.
        let counts = [("provider", 1), ("orders", orders), ("inventory", inventory), ("billing", billing)];
        for (service, count) in counts {
            for number in 1..=count {
                let name = if number == 1 { service.to_owned() } else { format!("{service}-{number}") };
                let member = system.prepare(service, &name, &options)?;
                member.process.start().with_context(|| format!("failed to start {name}"))?;
                system.members.insert(name, member);
            }
        }
        Ok(system)
    }

    /// The URL of the order API, at the first `orders` process, without a trailing slash.
    pub fn orders_url(&self) -> String {
        self.url("orders").unwrap_or_default().to_owned()
    }

    /// The URL at which a process answers (`/metrics`, `/readyz`), without a trailing slash.
    pub fn url(&self, name: &str) -> Result<&str> {
        Ok(&self.member(name)?.url)
    }

    /// The URL of a process's admin API, without a trailing slash.
    pub fn admin_url(&self, name: &str) -> Result<&str> {
        self.member(name)?.admin_url.as_deref().with_context(|| format!("{name} has no admin API"))
    }

    /// The token that the admin APIs of this system require. It is random.
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

    /// Everything that a process has logged so far.
    pub fn log(&self, name: &str) -> Result<String> {
        let log = self.member(name)?.process.log();
        fs::read_to_string(log).with_context(|| format!("failed to read {}", log.display()))
    }

    /// A process's id, or `None` while it does not run.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.member(name).ok()?.process.pid()
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub async fn kill(&self, name: &str) -> Result<()> {
        self.member(name)?.process.kill().await.with_context(|| format!("failed to kill {name}"))
    }

    /// Sends SIGTERM, and returns the exit code when the process has ended (`None` if a signal ended it).
    pub async fn terminate(&self, name: &str) -> Result<Option<i32>> {
        let ended = self.member(name)?.process.stop("TERM", STOP_DEADLINE).await;
        Ok(ended.with_context(|| format!("failed to terminate {name}"))?.code())
    }

    /// Sends SIGSTOP: the process keeps its connections and does nothing.
    pub fn pause(&self, name: &str) -> Result<()> {
        self.member(name)?.process.pause().with_context(|| format!("failed to pause {name}"))
    }

    /// Sends SIGCONT. Undoes [`System::pause`], and resumes a process that has stopped itself.
    pub fn resume(&self, name: &str) -> Result<()> {
        let process = &self.member(name)?.process;
        process.resume()?;
        let pid = process.pid().with_context(|| format!("failed to resume {name}: it is not running"))?;
        signal_all("CONT", &[pid])
    }

    /// Sends SIGSTOP to what reads a process's output: see `Setup::piped_logs`.
    pub fn pause_log_reader(&self, name: &str) -> Result<()> {
        self.signal_log_reader(name, "STOP")
    }

    /// Undoes [`System::pause_log_reader`].
    pub fn resume_log_reader(&self, name: &str) -> Result<()> {
        self.signal_log_reader(name, "CONT")
    }

    fn signal_log_reader(&self, name: &str, signal: &str) -> Result<()> {
        let pid = self.pid(name).with_context(|| format!("{name} is not running"))?;
        let reader = with_descendants(pid)?.get(1).copied();
        signal_all(signal, &[reader.with_context(|| format!("the output of {name} goes into no pipe"))?])
    }

    /// The setting that a process was prepared with. Another one may have been [set](Self::set) since.
    pub fn setting(&self, name: &str, variable: &str) -> Result<String> {
        let mut all = self.member(name)?.process.command().get_envs();
        let value = all.find(|(known, _)| *known == variable).and_then(|(_, value)| value);
        let value = value.with_context(|| format!("{name} has no setting {variable}"))?;
        Ok(value.to_string_lossy().into_owned())
    }

    /// Sets a setting for the next start of each process. A service reads those with its own prefix.
    pub fn set(&self, variable: &str, value: &str) {
        self.members.values().for_each(|member| member.process.set(variable, value));
    }

    /// Sets a setting of all three services for their next start: its name has no prefix.
    pub fn set_for_services(&self, setting: &str, value: &str) {
        for prefix in ["ORDERS", "INVENTORY", "BILLING"] {
            self.set(&format!("{prefix}_{setting}"), value);
        }
    }

    /// Starts a process again that was killed or has ended.
    pub async fn start_again(&self, name: &str) -> Result<()> {
        self.member(name)?.process.start().with_context(|| format!("failed to start {name}"))
    }

    /// Starts a process again with the program of the same name in another directory, for example of another release.
    pub async fn start_again_from(&self, directory: &Path, name: &str) -> Result<()> {
        let process = &self.member(name)?.process;
        let program = Path::new(process.command().get_program());
        let program = directory.join(program.file_name().unwrap_or_default());
        process
            .start_program(&program)
            .with_context(|| format!("failed to start {} as {name}", program.display()))
    }

    /// Waits until `/readyz` of every process answers 200. The error names the first process that is not ready, with
    /// the end of its log.
    pub async fn wait_ready(&self, deadline: Duration) -> Result<()> {
        for (name, member) in &self.members {
            let ready = member.process.wait_ready(&member.url, deadline).await;
            ready.with_context(|| format!("{name} is not ready"))?;
        }
        Ok(())
    }

    /// Sends SIGTERM to all running processes, and waits until they have ended. The error names those that did not exit
    /// in time, or not with exit code 0.
    pub async fn stop(&self) -> Result<()> {
        let mut stopping = Vec::new();
        for (name, member) in &self.members {
            if member.process.pid().is_some() {
                let process = member.process.take()?;
                process.signal_one("CONT")?;
                process.signal_one("TERM")?;
                stopping.push((name, process));
            }
        }
        let mut failures = Vec::new();
        for (name, mut process) in stopping {
            match process.wait(STOP_DEADLINE).await {
                Ok(status) if status.success() => {}
                Ok(status) => failures.push(format!("{name} exited with {status}; {}", process.log_tail())),
                // The process is killed when it is dropped.
                Err(late) => failures.push(format!("{name}: {late:#}")),
            }
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("\n"));
        }
        Ok(())
    }

    fn member(&self, name: &str) -> Result<&Member> {
        self.members.get(name).with_context(|| {
            let names: Vec<_> = self.names().collect();
            format!("no process has the name `{name}`; the processes are: {}", names.join(", "))
        })
    }
    /// Prepares a process of a service, or of the payment provider, which needs neither a broker nor an admin API.
    fn prepare(&self, service: &str, name: &str, options: &SystemOptions) -> Result<Member> {
        let setup = &options.setup;
        let port = match (name, options.orders_port) {
            ("orders", port @ 1..) => port,
            _ => free_port()?,
        };
        let prefix = service.to_uppercase();
        let variant = setup.variant.filter(|_| service == "orders");
        let is_service = service != "provider";
        let binary = match variant {
            Some(_) => "orders-variant".to_owned(),
            None if !is_service => "payment-provider".to_owned(),
            None if setup.lab => format!("{service}-lab"),
            None => service.to_owned(),
        };
        let address = format!("127.0.0.1:{port}");
        let admin_address = format!("127.0.0.1:{}", free_port()?);
        let mut command = Command::new(binaries::find(&binary)?);
        remove_settings(&mut command, &format!("{prefix}_"));
        command.envs(variant.map(|variant| ("VARIANT", variant)));
        command.env(format!("{prefix}_DATABASE_URL"), options.database.of(service));
        command.env(format!("{prefix}_HTTP_ADDRESS"), &address);
        if is_service {
            command.env(format!("{prefix}_AMQP_URL"), &options.amqp_url);
            command.env(format!("{prefix}_ADMIN_ADDRESS"), &admin_address);
            command.env(format!("{prefix}_ADMIN_TOKEN"), &self.admin_token);
        }
        if service == "billing" {
            command.env("BILLING_PROVIDER_URL", self.url("provider")?);
        }
        command.envs(setup.settings.iter().map(|(variable, value)| (variable, value)));
        let own = setup.settings_of_service.iter().filter(|(of, _)| *of == service);
        command.envs(own.map(|(_, (variable, value))| (variable, value)));
        let log = self.logs.join(format!("{name}.log"));
        let command = if setup.piped_logs && is_service { piped(&command, &log) } else { command };
        let process = RestartableProcess::new(command, log);
        let admin_url = (is_service && variant.is_none()).then(|| format!("http://{admin_address}"));
        Ok(Member { process, url: format!("http://{address}"), admin_url })
    }
}

/// The command with a pipe for its output, which a child process copies into the log.
fn piped(command: &Command, log: &Path) -> Command {
    let script = r#"rm -f "$1"; mkfifo "$1"; cat <"$1" & exec "$0" >"$1" 2>&1"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(command.get_program()).arg(log.with_extension("pipe"));
    copy_surroundings(command, &mut shell);
    shell
}
