//! The system of step mode: one process of each service, relays that publish one event at a time, and processes that stop at
//! crash points.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::choice::Choice;
use crate::http;
use crate::lab::{Setup, is_stopped, resume_process};
use crate::own_system::OwnSystem;
use crate::paths;
use crate::reconciliation::Reconciliation;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

use super::clock::now;
use super::source_lines::{self, SourceLine};

/// A process that a person leaves at a crash point is continued after this time.
const LONGEST_STOP: Duration = Duration::from_secs(60);

/// How long a person's freeze lasts: PostgreSQL ends a transaction that idles for 30 s.
const FREEZE: Duration = Duration::from_secs(33);

/// How long a killed process stays down.
const DOWN: Duration = Duration::from_secs(1);

/// How long nothing may have happened before the order is judged.
const QUIET: Duration = Duration::from_secs(2);

/// How long everything may take to come to rest once no process is stopped any more.
const REST_DEADLINE: Duration = Duration::from_secs(45);

/// How long the client waits for its answer: for as long as a process may be stopped.
const ANSWER_DEADLINE: Duration = Duration::from_secs(100);

const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The crash points that only a message passes that cannot be applied, and the queue of such a message.
const BAD_MESSAGES: [(&str, &str); 2] =
    [("dead-letter-saved", "inventory.events"), ("dead-letter-collected", "inventory.events.dead")];

/// What can be done to a process that has stopped at a crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepAction {
    Continue,
    /// Leave it stopped for longer than the database lets a transaction idle, and then continue it.
    Freeze,
    /// SIGKILL; a new process is started.
    Kill,
}

/// A process that has stopped itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stopped {
    pub(crate) pid: u32,
    /// The name of the process, such as `orders`.
    pub(crate) service: String,
    pub(crate) point: String,
    /// When it is continued at the latest, in milliseconds since 1970.
    pub(crate) ends: u64,
    /// The same by a clock that nothing sets.
    #[serde(skip)]
    until: Instant,
    /// It was frozen by a person: nothing else can be done until it ends.
    pub(crate) frozen: bool,
    pub(crate) source: Option<SourceLine>,
}

/// The end of a stop, for the page and for this process.
fn end_after(time: Duration) -> (u64, Instant) {
    (now() + time.as_secs() * 1000, Instant::now() + time)
}

/// What became of the order.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepVerdict {
    pub(crate) held: bool,
    pub(crate) sentence: String,
}

pub(crate) struct StepSystem {
    system: RunningSystem,
    terminal: Terminal,
    /// Where the processes find at which points to stop, and say that they have.
    folder: PathBuf,
    stopped: Vec<Stopped>,
    /// Killed processes, and when each is started again.
    down: Vec<(String, Instant)>,
    lines: Vec<String>,
    order: Option<Order>,
}

/// The order that is on its way.
struct Order {
    placed: Instant,
    /// The client's request. `None`: it was answered, or it failed.
    request: Option<JoinHandle<Result<Uuid>>>,
    /// When something has happened last.
    last_change: Instant,
}

impl StepSystem {
    pub(crate) async fn start(choice: Choice) -> Result<Self> {
        let folder = paths::home().join("steps/stopped");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let mut setup = Setup { lab: true, ..Setup::default() }
            .with("CRASH_STEPS", folder.to_string_lossy())
            // Orders are not given up while a person reads.
            .with("ORDERS_ANSWER_WITHIN", "1h");
        for service in ["ORDERS", "INVENTORY", "BILLING"] {
            setup = setup.with(&format!("{service}_RELAY_BATCH"), "1");
        }
        let own = OwnSystem::from(setup);
        let terminal = Terminal::new(false);
        let logs = paths::home().join("steps/logs");
        let system = RunningSystem::start_own(choice, own, logs, &terminal).await?;
        let system = system.context("interrupted")?;
        Ok(Self { system, terminal, folder, stopped: vec![], down: vec![], lines: vec![], order: None })
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.system.stop(&self.terminal).await
    }

    pub(crate) fn stopped(&self) -> &Vec<Stopped> {
        &self.stopped
    }

    /// What has happened to the order so far.
    pub(crate) fn lines(&self) -> &Vec<String> {
        &self.lines
    }

    /// Places an order. The processes that take part stop at these points.
    pub(crate) fn place(&mut self, points: &[String]) -> Result<()> {
        fs::write(self.folder.join("points"), points.join("\n")).context("failed to arm the crash points")?;
        self.lines.clear();
        let url = self.system.orders_url().to_owned();
        let bad = BAD_MESSAGES.into_iter().filter(|(point, _)| points.iter().any(|name| name == point));
        let bad: Vec<_> = bad.map(|(_, queue)| queue).collect();
        let api = self.system.broker_api()?;
        let request = tokio::spawn(async move {
            for queue in bad {
                api.publish(queue, "this is no event", "sent-by-the-board").await?;
            }
            let body =
                json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
            http::place(http::order_request(&url, &body)?.timeout(ANSWER_DEADLINE)).await
        });
        self.say("the client sends an order");
        let now = Instant::now();
        self.order = Some(Order { placed: now, request: Some(request), last_change: now });
        Ok(())
    }

    pub(crate) async fn act(&mut self, pid: u32, action: StepAction) -> Result<()> {
        let Some(index) = self.stopped.iter().position(|stopped| stopped.pid == pid) else {
            // It was continued meanwhile, because its time was over.
            return Ok(());
        };
        let Stopped { service, point, .. } = self.stopped[index].clone();
        match action {
            StepAction::Continue => self.go_on(index)?,
            StepAction::Freeze => {
                let stopped = &mut self.stopped[index];
                stopped.frozen = true;
                (stopped.ends, stopped.until) = end_after(FREEZE);
                self.say(format!("{service} stays frozen at {point} for {} s", FREEZE.as_secs()));
            }
            StepAction::Kill => {
                self.forget(index);
                self.system.processes()?.kill(&service).await?;
                self.say(format!("{service} is killed at {point} (SIGKILL)"));
                self.down.push((service, Instant::now() + DOWN));
            }
        }
        Ok(())
    }

    /// Looks at what has changed. The order's verdict, or why there is none, once everything is at rest.
    pub(crate) async fn tick(&mut self) -> Result<Option<Result<StepVerdict>>> {
        self.find_stopped()?;
        while let Some(index) = self.stopped.iter().position(|stopped| stopped.until <= Instant::now()) {
            self.go_on(index)?;
        }
        if let Some(index) = self.down.iter().position(|(_, until)| *until <= Instant::now()) {
            let (service, _) = self.down.remove(index);
            self.system.processes()?.start_again(&service).await?;
            self.say(format!("another process of {service} is started"));
        }
        self.await_answer().await;
        self.judge().await
    }

    /// Processes that have stopped themselves since the last look.
    fn find_stopped(&mut self) -> Result<()> {
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let known = self.stopped.iter().any(|stopped| stopped.pid == pid);
            // It writes the file before it stops.
            if known || !is_stopped(pid).unwrap_or(false) {
                continue;
            }
            let point = fs::read_to_string(entry.path())?;
            let processes = self.system.processes()?;
            let service = processes.names().find(|name| processes.pid(name) == Some(pid));
            let service = service.context("an unknown process has stopped")?.to_owned();
            let source = source_lines::find(&service, &point);
            self.say(format!("{service} stops at {point}"));
            let (ends, until) = end_after(LONGEST_STOP);
            self.stopped.push(Stopped { pid, service, point, ends, until, frozen: false, source });
        }
        Ok(())
    }

    fn go_on(&mut self, index: usize) -> Result<()> {
        let Stopped { pid, service, point, .. } = self.forget(index);
        resume_process(pid)?;
        self.say(format!("{service} continues after {point}"));
        Ok(())
    }

    /// Removes a stopped process and its file: the process may stop again at once.
    fn forget(&mut self, index: usize) -> Stopped {
        let stopped = self.stopped.remove(index);
        let _ = fs::remove_file(self.folder.join(stopped.pid.to_string()));
        stopped
    }

    async fn await_answer(&mut self) {
        let Some(order) = &mut self.order else { return };
        let Some(request) = order.request.take_if(|request| request.is_finished()) else { return };
        match request.await.map_err(Into::into).flatten() {
            Ok(id) => {
                self.system.note(id);
                self.say(format!("the client has its answer: 201, order {id}"));
            }
            Err(error) => self.say(format!("the client has no 201, and so no promise: {error:#}")),
        }
    }

    async fn judge(&mut self) -> Result<Option<Result<StepVerdict>>> {
        let Some(order) = &self.order else { return Ok(None) };
        let waits = order.request.is_some() || !self.stopped.is_empty() || !self.down.is_empty();
        if waits || order.last_change.elapsed() < QUIET {
            return Ok(None);
        }
        let late = order.last_change.elapsed() > REST_DEADLINE;
        let reading = timeout(READ_DEADLINE, self.system.reconcile_acknowledged()).await;
        let read = match reading.map_err(Into::into).flatten() {
            Ok(read) => read,
            Err(_) if !late => return Ok(None),
            Err(error) => return Ok(Some(Err(self.give_up(error)))),
        };
        let at_rest = read.in_progress() == 0 && !read.findings.iter().any(|found| found.may_arrive());
        if !at_rest && !late {
            return Ok(None);
        }
        let took = order.placed.elapsed();
        self.order = None;
        let transit = self.system.transit().await;
        // What has not arrived by now, and is in no queue, will not.
        let may_arrive = transit.not_ready.is_some() || transit.queued != Some(0);
        let dropped = self.system.duplicates_dropped().await.known();
        Ok(Some(Ok(verdict(&read, may_arrive, took, dropped))))
    }

    fn give_up(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.order = None;
        error.context("failed to read the records")
    }

    fn say(&mut self, what: impl AsRef<str>) {
        let at = self.order.as_mut().map_or(0.0, |order| {
            order.last_change = Instant::now();
            order.placed.elapsed().as_secs_f64()
        });
        self.lines.push(format!("{at:5.1} s  {}", what.as_ref()));
    }
}

fn verdict(read: &Reconciliation, may_arrive: bool, took: Duration, dropped: u64) -> StepVerdict {
    let held = read.findings.is_empty() && read.in_progress() == 0;
    let broken = if may_arrive { read.broken_for_good() } else { read.broken() };
    let (word, outcome) = match broken {
        Some(broken) => ("BROKEN", broken),
        None if held => ("HELD", "nothing is lost, nothing is doubled".to_owned()),
        None if may_arrive => ("INCONCLUSIVE", format!("{} still in progress", read.progress())),
        None => ("BROKEN", format!("{} still in progress, and nothing moves", read.progress())),
    };
    let aside = match read.waiting_for_operator() {
        0 => String::new(),
        count => format!("; {count} set aside for an operator"),
    };
    let sentence = format!(
        "{word}: {outcome}. Orders so far: {} acknowledged, {} confirmed, {} cancelled{aside}. The consumers have \
         dropped {dropped} copies since they started. It took {:.1} s.",
        read.acknowledged,
        read.confirmed,
        read.cancelled,
        took.as_secs_f64()
    );
    StepVerdict { held, sentence }
}
