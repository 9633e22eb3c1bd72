//! What every drill uses: a load with a ledger, kills and restarts, a progress line, and the reconciliation at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use load_tests::{Load, Mix, Saturation, Summary};
use serde::Deserialize;
use tokio::time::{Instant, interval};

use super::report::{Fact, Refusals, Report};
use crate::ledger::Ledger;
use crate::load::{RunningLoad, StoppableLoad};
use crate::reconciliation::{DuplicatesDropped, Wait, settle};
use crate::running_system::RunningSystem;
use crate::target::{Action, Target};
use crate::terminal::Terminal;

/// An effect that has not arrived this long after the load has ended, with everything running, counts as missing.
const SETTLE_DEADLINE: Duration = Duration::from_secs(60);
/// Without an outbox, nothing that has not arrived after this time without a change will arrive.
const UNCHANGED_FOR: Duration = Duration::from_secs(10);

/// The options of a drill on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrillOptions {
    /// Orders per second.
    pub(crate) rate: u32,
    /// How long the fault lasts.
    pub(crate) outage: Duration,
}

/// One run of a drill: the system, the load on it, and what is printed meanwhile.
pub(crate) struct DrillRun<'a> {
    pub(crate) system: &'a RunningSystem,
    pub(crate) options: DrillOptions,
    terminal: &'a Terminal,
    ledger: Arc<Ledger>,
    started: Instant,
    phase: RefCell<&'static str>,
    /// The progress line shows what was done since this reading.
    progress_before: Option<Progress>,
    duplicates_before: DuplicatesDropped,
}

/// A part that was killed.
pub(crate) struct Killed {
    target: Target,
    pid_before: Option<u32>,
    is_gone: bool,
    at: Instant,
}

/// A part that was killed and started again.
pub(crate) struct Restarted {
    pid_before: Option<u32>,
    pid_after: Option<u32>,
    stayed_down: bool,
    /// From the kill until it worked again.
    pub(crate) after: Duration,
}

/// What the progress line shows of the records.
#[derive(Clone, Copy, Deserialize)]
struct Progress {
    pending: u64,
    inventory: u64,
    billing: u64,
    confirmed: u64,
    cancelled: u64,
}

const PROGRESS: &str = "select json_build_object(
    'pending', (select count(*) from orders.outbox where published_at is null and parked_at is null)
             + (select count(*) from inventory.outbox where published_at is null and parked_at is null)
             + (select count(*) from billing.outbox where published_at is null and parked_at is null),
    'inventory', (select count(*) from inventory.reservations),
    'billing', (select count(*) from billing.payments where state <> 'asked'),
    'confirmed', (select count(*) from orders.orders where status = 'confirmed'),
    'cancelled', (select count(*) from orders.orders where status = 'cancelled'))::text";

impl<'a> DrillRun<'a> {
    pub(crate) async fn new(
        system: &'a RunningSystem,
        terminal: &'a Terminal,
        options: DrillOptions,
    ) -> Result<Self> {
        let ledger = Arc::new(Ledger::open(&system.ledger_path().await?)?);
        let mut run = Self {
            system,
            options,
            terminal,
            ledger,
            started: Instant::now(),
            phase: RefCell::new("steady"),
            progress_before: None,
            duplicates_before: system.duplicates_dropped().await,
        };
        run.progress_before = run.read_progress().await;
        Ok(run)
    }

    /// Starts a load for a given time. Each acknowledgement is in the ledger before it is counted.
    pub(crate) fn load(&self, for_: Duration) -> RunningLoad {
        RunningLoad::run(self.open_loop(for_), self.ledger.recorder())
    }

    /// Starts the same load, which runs until it is stopped.
    pub(crate) fn load_until_stopped(&self) -> StoppableLoad {
        StoppableLoad::run(self.open_loop(Duration::MAX), self.ledger.recorder())
    }

    fn open_loop(&self, for_: Duration) -> Load {
        Load { mix: Mix::Real, ..Load::new(self.system.orders_url(), self.options.rate, for_) }
    }

    /// Starts clients that send their next order as soon as the last one is answered.
    pub(crate) fn saturate(&self, clients: u32, for_: Duration) -> RunningLoad {
        let url = self.system.orders_url().to_owned();
        RunningLoad::saturate(Saturation { url, connections: clients, for_, seed: 1 }, self.ledger.recorder())
    }

    /// Kills a part.
    pub(crate) async fn kill(&self, target: Target) -> Result<Killed> {
        let pid_before = self.system.pid(&target).await?;
        self.system.act(Action::Kill, &target).await?;
        let at = Instant::now();
        let is_gone = self.system.pid(&target).await?.is_none();
        Ok(Killed { target, pid_before, is_gone, at })
    }

    /// Starts it again, and returns when it works.
    pub(crate) async fn restart(&self, killed: Killed) -> Result<Restarted> {
        let Killed { target, pid_before, is_gone, at } = killed;
        let stayed_down = is_gone && self.system.pid(&target).await?.is_none();
        self.system.act(Action::Start, &target).await?;
        let after = at.elapsed();
        let pid_after = self.system.pid(&target).await?;
        Ok(Restarted { pid_before, pid_after, stayed_down, after })
    }

    /// Starts a phase of the drill. Its name is in the progress line.
    pub(crate) fn phase(&self, name: &'static str, what: impl AsRef<str>) {
        *self.phase.borrow_mut() = name;
        let seconds = self.started.elapsed().as_secs_f64();
        self.terminal.print(format!("  {seconds:5.1} s  {name:<10} {}", what.as_ref()));
    }

    /// How many orders were acknowledged between two moments.
    pub(crate) fn accepted_between(&self, from: SystemTime, to: SystemTime) -> u64 {
        self.ledger.recorded_between(from, to)
    }

    /// Waits until the system is quiescent, reconciles, and judges.
    pub(crate) async fn report(&self, facts: Vec<Fact>, load: Summary, refusals: Refusals) -> Result<Report> {
        self.phase("drain", "waiting until nothing is pending and every order is confirmed or cancelled");
        let no_outbox = self.system.variant().is_some_and(|variant| !variant.keeps_outbox());
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
                tokio::join!(self.read_progress(), self.system.pid(&Target::Broker))
            };
            tokio::select! {
                done = &mut work => return done,
                (now, broker) = reading => {
                    self.terminal.progress(self.progress_line(now, broker.ok().map(|pid| pid.is_some())));
                }
            }
        }
    }

    async fn read_progress(&self) -> Option<Progress> {
        serde_json::from_str(&self.system.read(PROGRESS).await.ok()?).ok()
    }

    /// What is unknown is shown as `?`, never as 0.
    fn progress_line(&self, now: Option<Progress>, broker_runs: Option<bool>) -> String {
        let number = |known: Option<u64>| known.map_or("?".to_owned(), |number| number.to_string());
        let since = |figure: fn(Progress) -> u64| {
            let both = now.zip(self.progress_before);
            number(both.map(|(now, before)| figure(now).saturating_sub(figure(before))))
        };
        let broker = match broker_runs {
            Some(true) => "up",
            Some(false) => "DOWN",
            None => "?",
        };
        format!(
            "  {:5.1} s  {:<10} accepted {:>5}   events pending {:>5}   answered: inventory {:>5}, billing {:>5}   \
             confirmed {:>5}, cancelled {:>4}   broker {broker}",
            self.started.elapsed().as_secs_f64(),
            self.phase.borrow(),
            self.ledger.recorded(),
            number(now.map(|now| now.pending)),
            since(|progress| progress.inventory),
            since(|progress| progress.billing),
            since(|progress| progress.confirmed),
            since(|progress| progress.cancelled),
        )
    }
}

impl Killed {
    /// The killed process in words.
    pub(crate) fn process(&self) -> String {
        process(self.pid_before)
    }
}

impl Restarted {
    /// The killed process in words.
    pub(crate) fn process_before(&self) -> String {
        process(self.pid_before)
    }

    /// The new process in words.
    pub(crate) fn process_after(&self) -> String {
        process(self.pid_after)
    }

    /// Whether a process was killed, and none replaced it before the restart.
    pub(crate) fn was_down(&self) -> bool {
        self.pid_before.is_some() && self.stayed_down
    }

    /// Whether it runs again, as another process.
    pub(crate) fn runs_again(&self) -> bool {
        self.pid_after.is_some() && self.pid_after != self.pid_before
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("no process".to_owned(), |pid| format!("process {pid}"))
}
