//! What every drill uses: a load with a ledger, kills and restarts, a progress line, and the reconciliation at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use load_tests::{Load, Mix, Saturation, Summary};
use tokio::time::{Instant, interval, sleep, timeout};
use uuid::Uuid;

use super::drill::Drill;
use super::progress::Progress;
use super::report::{Fact, Refusals, Report};
use crate::ledger::Ledger;
use crate::load::{RunningLoad, StoppableLoad};
use crate::local_system::LocalSystem;
use crate::own_system::Tools;
use crate::proxies::Proxies;
use crate::reconciliation::{DuplicatesDropped, Reconciliation, Wait, settle};
use crate::running_system::RunningSystem;
use crate::target::Target;
use crate::terminal::Terminal;

/// An effect that has not arrived this long after the load has ended, with everything running, counts as missing.
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
/// Without an outbox, nothing that has not arrived after this time without a change will arrive.
const UNCHANGED_FOR: Duration = Duration::from_secs(10);

/// How long a fault may take until it is felt, on a busy machine.
const FELT_DEADLINE: Duration = Duration::from_secs(30);
const FELT_INTERVAL: Duration = Duration::from_millis(200);
/// The load before the fault: orders are at every step when it happens.
const LOAD_BEFORE: Duration = Duration::from_secs(4);
/// The load after the repair: new orders arrive while the backlog drains.
const LOAD_AFTER: Duration = Duration::from_secs(4);

/// The options of a drill on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrillOptions {
    /// Orders per second.
    pub(crate) rate: u32,
    /// How long the fault lasts. Without it, as long as the drill says.
    pub(crate) outage: Option<Duration>,
    /// Decides which orders are placed, and what a drill draws at random.
    pub(crate) seed: u64,
}

/// One run of a drill: the system, the load on it, and what is printed meanwhile.
pub(crate) struct DrillRun<'a> {
    pub(crate) system: &'a RunningSystem,
    /// Orders per second.
    pub(crate) rate: u32,
    /// How long the fault lasts.
    pub(crate) outage: Duration,
    seed: u64,
    terminal: &'a Terminal,
    ledger: Arc<Ledger>,
    started: Instant,
    /// The same moment, in the time of the services' logs.
    pub(super) started_at: SystemTime,
    phase: RefCell<&'static str>,
    /// What was printed about the phases.
    lines: RefCell<Vec<String>>,
    /// The progress line shows what was done since this reading.
    progress_before: Option<Progress>,
    duplicates_before: DuplicatesDropped,
    timed_out_before: f64,
}

impl<'a> DrillRun<'a> {
    pub(crate) async fn new(
        system: &'a RunningSystem,
        terminal: &'a Terminal,
        drill: &Drill,
        options: DrillOptions,
    ) -> Result<Self> {
        fastrand::seed(options.seed);
        let ledger = Arc::new(Ledger::open(&system.ledger_path().await?)?);
        let mut run = Self {
            system,
            rate: options.rate,
            outage: options.outage.unwrap_or(drill.outage),
            seed: options.seed,
            terminal,
            ledger,
            started: Instant::now(),
            started_at: SystemTime::now(),
            phase: RefCell::new("steady"),
            lines: RefCell::default(),
            progress_before: None,
            duplicates_before: system.duplicates_dropped().await,
            timed_out_before: count_time_outs(system).await?,
        };
        run.progress_before = Progress::read(system).await;
        Ok(run)
    }

    /// Starts a load that runs until it is stopped. Each acknowledgement is in the ledger before it is counted.
    pub(crate) fn load_until_stopped(&self) -> StoppableLoad {
        let load = Load {
            mix: Mix::Real,
            seed: self.seed,
            ..Load::new(self.system.orders_url(), self.rate, Duration::MAX)
        };
        StoppableLoad::run(load, self.ledger.recorder())
    }

    /// Starts the load that lasts until [`end`](Self::end), and returns when orders are at every step.
    pub(crate) async fn steady(&self) -> StoppableLoad {
        self.phase("steady", format!("{} orders per second", self.rate));
        let load = self.load_until_stopped();
        sleep(LOAD_BEFORE).await;
        load
    }

    /// Lets the load go on for some seconds, and ends it.
    pub(crate) async fn end(&self, load: StoppableLoad) -> Result<Summary> {
        self.phase("recover", "repaired; the load goes on for some seconds");
        sleep(LOAD_AFTER).await;
        load.stop().await
    }

    /// Waits for the time of the outage. The fact: orders were accepted meanwhile.
    pub(crate) async fn accepted_meanwhile(&self) -> Fact {
        let from = SystemTime::now();
        sleep(self.outage).await;
        let accepted = self.accepted_between(from, SystemTime::now());
        Fact {
            what: format!("{accepted} orders were accepted in {} s of the outage", self.outage.as_secs()),
            observed: accepted > 0,
        }
    }

    /// Waits until the fault was felt. `check` returns `None` while it was not, and then says in words what was seen.
    /// A fault that was not felt proves nothing.
    pub(crate) async fn felt(
        &self,
        expected: &str,
        mut check: impl AsyncFnMut() -> Result<Option<String>>,
    ) -> Fact {
        let end = Instant::now() + FELT_DEADLINE;
        let mut last = String::new();
        while Instant::now() < end {
            match timeout(FELT_DEADLINE, check()).await.map_err(Into::into).flatten() {
                Ok(Some(what)) => {
                    self.phase("felt", &what);
                    return Fact { what, observed: true };
                }
                Ok(None) => {}
                Err(error) => last = format!(" ({error:#})"),
            }
            sleep(FELT_INTERVAL).await;
        }
        Fact { what: format!("{expected}{last}"), observed: false }
    }

    /// Waits until so many events of the order service are committed and not published.
    pub(crate) async fn pending_grow(&self, events: u32) -> Fact {
        self.felt(&format!("{events} events wait in the outbox"), async || {
            let pending = self.system.metric("orders", "outbox_pending").await?;
            Ok((pending > f64::from(events))
                .then(|| format!("{pending} events wait in the outbox of orders")))
        })
        .await
    }

    /// The system that this drill has for itself.
    pub(crate) fn own(&self) -> Result<&LocalSystem> {
        self.system.own()
    }

    /// What breaks it.
    pub(crate) fn tools(&self) -> Result<&Tools> {
        self.own()?.tools()
    }

    /// The proxies between the services and their servers.
    pub(crate) fn proxies(&self) -> Result<&Proxies> {
        self.system.proxies()
    }

    /// Waits until a service reports that a role's connections to the broker are lost.
    pub(crate) async fn lost_connection(&self, service: &str, role: &str) -> Fact {
        let gauge = format!("broker_connected{{role=\"{role}\"}}");
        self.felt(&format!("{service} reports its {role} as disconnected"), async || {
            let connected = self.system.metric(service, &gauge).await?;
            Ok((connected == 0.0).then(|| format!("{service} reports its {role} as disconnected")))
        })
        .await
    }

    /// Records orders that the drill has placed itself.
    pub(crate) fn acknowledge(&self, order: Uuid) {
        self.ledger.record(order, SystemTime::now());
    }

    /// Starts clients that send their next order as soon as the last one is answered.
    pub(crate) fn saturate(&self, clients: u32, for_: Duration) -> RunningLoad {
        let url = self.system.orders_url().to_owned();
        RunningLoad::saturate(
            Saturation { url, connections: clients, for_, seed: self.seed },
            self.ledger.recorder(),
        )
    }

    /// Starts a phase of the drill. Its name is in the progress line.
    pub(crate) fn phase(&self, name: &'static str, what: impl AsRef<str>) {
        *self.phase.borrow_mut() = name;
        let seconds = self.started.elapsed().as_secs_f64();
        let line = format!("  {seconds:5.1} s  {name:<10} {}", what.as_ref());
        self.terminal.print(&line);
        self.lines.borrow_mut().push(line);
    }

    /// The lines of the phases so far.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// How long the drill has taken so far.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The command that runs the drill like this.
    pub(super) fn command(&self, drill: &Drill) -> String {
        let Self { rate, seed, .. } = self;
        let outage = self.outage.as_millis();
        let command =
            format!("cargo demo drill {} --rate {rate} --outage {outage}ms --seed {seed}", drill.name);
        command + &self.system.alteration().options()
    }

    /// How many orders were acknowledged between two moments.
    pub(crate) fn accepted_between(&self, from: SystemTime, to: SystemTime) -> u64 {
        self.ledger.recorded_between(from, to)
    }

    /// Waits until nothing is in progress any more, for drills that go on then.
    pub(crate) async fn settled(&self) -> Result<Reconciliation> {
        let read = async || self.system.reconcile(&self.ledger.acknowledged()?).await;
        Ok(settle(Wait::until_decided(SETTLE_DEADLINE), read).await?.reconciliation)
    }

    /// For a claim that no order times out.
    pub(crate) async fn refute_time_outs(&self, report: &mut Report) -> Result<()> {
        let timed_out = count_time_outs(self.system).await? - self.timed_out_before;
        if timed_out > 0.0 {
            report.refute(format!("{timed_out} orders timed out"));
        }
        Ok(())
    }

    /// Waits until the system is quiescent, reconciles, and judges.
    pub(crate) async fn report(&self, facts: Vec<Fact>, load: Summary, refusals: Refusals) -> Result<Report> {
        self.phase("drain", "waiting until nothing is pending and every order is confirmed or cancelled");
        let no_outbox = self.system.variant().is_some_and(|variant| !variant.has_outbox());
        let wait = if no_outbox {
            Wait::until_unchanged_for(UNCHANGED_FOR, SETTLE_DEADLINE)
        } else {
            Wait::until_decided(SETTLE_DEADLINE)
        };
        let read = async || self.system.reconcile(&self.ledger.acknowledged()?).await;
        let reconciliation = settle(wait, read).await?.reconciliation;
        self.phase(
            "reconcile",
            "compared the acknowledged orders with the records of the services and the provider",
        );
        let dropped = self.system.duplicates_dropped().await.since(self.duplicates_before);
        Ok(Report::new(facts, load, refusals, reconciliation, dropped))
    }

    /// Runs the drill, and shows the progress line meanwhile.
    pub(super) async fn with_progress<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut interval = interval(Duration::from_secs(1));
        loop {
            let reading = async {
                interval.tick().await;
                tokio::join!(Progress::read(self.system), self.system.pid(&Target::Broker))
            };
            tokio::select! {
                done = &mut work => return done,
                (now, broker) = reading => {
                    let figures = Progress::figures(now, self.progress_before);
                    let broker = match broker {
                        Ok(Some(_)) => "up",
                        Ok(None) => "DOWN",
                        Err(_) => "?",
                    };
                    let (seconds, phase) = (self.seconds(), self.phase.borrow());
                    let accepted = self.ledger.recorded();
                    self.terminal.progress(format!(
                        "  {seconds:5.1} s  {phase:<10} accepted {accepted:>5}   {figures}   broker {broker}"
                    ));
                }
            }
        }
    }
}

/// How many orders the order service has cancelled because an answer did not come in time.
async fn count_time_outs(system: &RunningSystem) -> Result<f64> {
    system.metric("orders", "orders_timed_out_total").await
}
