//! One run of a drill: its load with a ledger, faults and their signs, a progress line, and the reconciliation at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use load_tests::{Load, Mix, Summary};
use testbed::{fewer, longer};
use tokio::time::{Instant, interval, sleep, timeout};
use uuid::Uuid;

use super::confirmations::Confirmations;
use super::progress::Progress;
use super::report::{Found, Refusals, Report};
use super::waiting;
use crate::cancelling_load::{CancellingLoad, Sent};
use crate::fault::{Fact, Fault, Injected};
use crate::lab::CONDITION_DEADLINE;
use crate::ledger::Ledger;
use crate::part::{BROKER, title};
use crate::reconciliation::{DuplicatesDropped, Kind, Reconciliation, Settled, Wait};
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// How long everything may take to come to rest after the load. What is still in progress then is not judged.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);
/// Each message about an order that is gone is tried and set aside alone, which takes longer than to apply many at once.
const DAMAGE_DEADLINE: Duration = Duration::from_secs(180);

/// How long a fault may take until it is felt, on a busy machine. This and the deadlines above are longer on a slow one.
const FELT_DEADLINE: Duration = Duration::from_secs(30);
const FELT_INTERVAL: Duration = Duration::from_millis(200);
/// The load before the fault: orders are at every step when it happens.
const LOAD_BEFORE: Duration = Duration::from_secs(4);
/// The load after the repair: new orders arrive while the backlog drains.
const LOAD_AFTER: Duration = Duration::from_secs(4);

/// How many orders there are for each that is cancelled at once.
const CANCELLED_ONE_IN: u32 = 4;

/// Orders per second on the reference machine.
const DEFAULT_RATE: u32 = 60;

/// The options of a drill on the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DrillOptions {
    /// Orders per second. Without it: 60, and fewer on a machine that is slow now.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
    /// How long the fault lasts. Each drill has a default.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) outage: Option<Duration>,
    /// How often `database-failover-sync` fails over.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) times: u32,
    /// Decides which orders are placed, and what a drill draws at random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// One run of a drill: the system, the load on it, and what is printed meanwhile.
pub(crate) struct DrillRun<'a> {
    pub(crate) system: &'a RunningSystem,
    /// Orders per second.
    pub(crate) rate: u32,
    /// How long the fault lasts.
    pub(crate) outage: Duration,
    /// How often a drill fails over, if it can do that more than once.
    pub(super) times: u32,
    pub(super) seed: u64,
    terminal: &'a Terminal,
    pub(super) ledger: Arc<Ledger>,
    load: RefCell<Option<CancellingLoad>>,
    /// Whether its clients cancel orders.
    cancels: bool,
    /// The orders whose cancellation was answered with 200.
    cancelled: RefCell<Vec<Uuid>>,
    /// A subscriber of what no service consumes.
    confirmations: RefCell<Option<Confirmations>>,
    /// The results of the loads before [`move_load`](Self::move_load).
    moved: RefCell<Vec<Summary>>,
    /// The result of the load that was stopped last.
    summary: RefCell<Option<Summary>>,
    found: RefCell<Found>,
    started: Instant,
    /// The same moment, in the time of the services' logs.
    pub(super) started_at: SystemTime,
    phase: RefCell<&'static str>,
    /// What was printed about the phases.
    lines: RefCell<Vec<String>>,
    /// The progress line shows what was done since this reading.
    progress_before: Option<Progress>,
    /// The records before the drill.
    before: Reconciliation,
    duplicates_before: DuplicatesDropped,
    timed_out_before: f64,
}

/// The state of a drill once nothing is in progress any more.
pub(crate) struct Ended {
    pub(crate) load: Summary,
    pub(crate) settled: Settled,
    pub(crate) duplicates_dropped: DuplicatesDropped,
    /// How many orders timed out.
    pub(crate) timed_out: f64,
}

impl<'a> DrillRun<'a> {
    /// `outage` is how long the fault lasts unless the options say otherwise; `cancels`: clients cancel some of their orders.
    pub(crate) async fn new(
        system: &'a RunningSystem,
        terminal: &'a Terminal,
        outage: Duration,
        cancels: bool,
        options: DrillOptions,
    ) -> Result<Self> {
        fastrand::seed(options.seed);
        let ledger = system.ledger().await?;
        let mut run = Self {
            system,
            rate: options.rate.unwrap_or_else(|| fewer(DEFAULT_RATE)),
            outage: options.outage.unwrap_or(outage),
            times: options.times,
            seed: options.seed,
            terminal,
            ledger: ledger.clone(),
            load: RefCell::default(),
            cancels,
            cancelled: RefCell::default(),
            confirmations: RefCell::new(Confirmations::on(system).await?),
            moved: RefCell::default(),
            summary: RefCell::default(),
            found: RefCell::default(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            phase: RefCell::new("steady"),
            lines: RefCell::default(),
            progress_before: None,
            before: system.reconcile(&ledger.acknowledged()?).await?,
            duplicates_before: system.duplicates_dropped().await,
            timed_out_before: count_time_outs(system).await?,
        };
        run.progress_before = Progress::read(system).await;
        Ok(run)
    }

    /// Starts a load that runs until it is stopped. Each acknowledgement is in the ledger before it is counted.
    pub(crate) fn start_load(&self) -> Result<()> {
        self.start_load_of(Mix::Real, vec![])
    }

    /// The same, with another kind of orders, and with an equal share at each of these order services too.
    pub(super) fn start_load_of(&self, mix: Mix, others: Vec<String>) -> Result<()> {
        self.start_load_at(self.system.orders_url(), mix, others)
    }

    fn start_load_at(&self, url: &str, mix: Mix, others: Vec<String>) -> Result<()> {
        let load = Load { mix, seed: self.seed, others, ..Load::new(url, self.rate, Duration::MAX) };
        let urls = if self.cancels { self.system.order_services() } else { vec![] };
        let load = CancellingLoad::start(load, urls, CANCELLED_ONE_IN, &self.ledger)?;
        self.load.replace(Some(load));
        Ok(())
    }

    /// Lets the load go to another order service, as a proxy does before an instance is stopped. What was refused until now
    /// counts too.
    pub(super) async fn move_load(&self, url: &str) -> Result<()> {
        let before = self.load.take().context("the drill has no load")?;
        self.start_load_at(url, Mix::Real, vec![])?;
        let Sent { orders, cancelled } = before.stop().await?;
        self.cancelled.borrow_mut().extend(cancelled);
        self.moved.borrow_mut().push(orders);
        Ok(())
    }

    /// Starts the load that lasts until [`end`](Self::end), and returns when orders are at every step.
    pub(super) async fn steady(&self) -> Result<()> {
        self.phase("steady", format!("{} orders per second", self.rate));
        self.start_load()?;
        sleep(LOAD_BEFORE).await;
        Ok(())
    }

    /// Ends the load at once.
    pub(crate) async fn stop_load(&self) -> Result<()> {
        let load = self.load.take();
        if let Some(load) = load {
            let Sent { orders, cancelled } = load.stop().await?;
            self.cancelled.borrow_mut().extend(cancelled);
            self.use_summary(orders);
        }
        Ok(())
    }

    /// How many cancellations were acknowledged so far.
    pub(super) fn cancelled(&self) -> usize {
        self.cancelled.borrow().len() + self.load.borrow().as_ref().map_or(0, CancellingLoad::cancelled)
    }

    /// Ends the load, and forgets what its clients were told since a moment, when there were so many cancellations. Returns the
    /// orders.
    pub(super) async fn forget_since(&self, moment: SystemTime, cancelled: usize) -> Result<Vec<Uuid>> {
        self.stop_load().await?;
        self.cancelled.borrow_mut().truncate(cancelled);
        self.ledger.forget_since(moment)
    }

    /// Lets the load go on for some seconds and ends it, unless the drill has done that.
    pub(crate) async fn end(&self) -> Result<()> {
        if self.load.borrow().is_some() {
            self.phase("recover", "repaired; the load goes on for some seconds");
            sleep(LOAD_AFTER).await;
        }
        self.stop_load().await
    }

    /// Claims that all that waits now is done while the load goes on, and ends the load, unless the drill has done that.
    pub(super) async fn end_with_progress(&self) -> Result<()> {
        if self.load.borrow().is_some() {
            self.phase("recover", "repaired; the load goes on until nothing waits that waited at the repair");
            self.claim_progress().await;
        }
        self.stop_load().await
    }

    async fn claim_progress(&self) {
        let repaired = Instant::now();
        sleep(LOAD_AFTER).await;
        loop {
            let (ages, passed) = (waiting::ages(self.system).await, repaired.elapsed());
            let ages = match ages {
                Ok(ages) => ages,
                Err(error) if passed > CONDITION_DEADLINE => {
                    return self.injected(format!("what waits can be read ({error:#})"), false);
                }
                Err(_) => {
                    sleep(FELT_INTERVAL).await;
                    continue;
                }
            };
            // What has waited for less time has come since.
            let late: Vec<_> =
                (waiting::KINDS.iter().zip(ages)).filter(|(_, age)| *age >= passed.as_secs_f64()).collect();
            if late.is_empty() {
                let seconds = passed.as_secs_f64();
                let what = "all that had waited was done while orders kept coming";
                return self.promised(format!("after {seconds:.0} s {what}"), true);
            }
            if let Some((kind, age)) = late.iter().find(|(kind, _)| passed > kind.bound) {
                let waits = format!("{} has waited for {age:.0} s while orders kept coming", kind.what);
                return match self.system.transit().await.not_ready {
                    None => self.promised(waits, false),
                    Some(part) => self.injected(format!("{waits}, with every part ready: {part}"), false),
                };
            }
            sleep(FELT_INTERVAL).await;
        }
    }

    /// Lets the report be about this load, and about no earlier one.
    pub(crate) fn use_summary(&self, summary: Summary) {
        if let Some(earlier) = self.summary.replace(Some(summary)) {
            self.may_exist(earlier.refused_in_all() + earlier.failed);
        }
    }

    /// Injects a fault, and says so.
    pub(crate) async fn inject<'f>(&self, fault: &'f Fault<'f>) -> Result<Injected<'f>> {
        let mut injected = fault.inject(self.system).await?;
        self.phase("outage", &injected.what);
        self.found.borrow_mut().injected.append(&mut injected.facts);
        Ok(injected)
    }

    /// Repairs a fault. Of a part that was killed, it says how many orders were accepted meanwhile.
    pub(crate) async fn repair(&self, injected: Injected<'_>) -> Result<()> {
        let (killed, at) = (injected.killed(), injected.at);
        if killed.is_some() {
            let accepted = self.accepted_since(SystemTime::now() - at.elapsed());
            self.phase(
                "restart",
                format!("{accepted} orders were accepted while it was down; starting it again"),
            );
        }
        let repaired = injected.repair(self.system).await?;
        if let (Some(part), Some(process)) = (killed, repaired.process) {
            let seconds = at.elapsed().as_secs_f64();
            self.phase("recover", format!("{} works again after {seconds:.1} s, as {process}", title(part)));
        }
        self.found.borrow_mut().injected.extend(repaired.facts);
        Ok(())
    }

    /// Records what the drill has done. If that was not observed, nothing is proven.
    pub(crate) fn injected(&self, what: impl Into<String>, observed: bool) {
        self.found.borrow_mut().injected.push(Fact::new(what, observed));
    }

    /// Records what the system has done. If that was not observed, the claim is broken.
    pub(crate) fn promised(&self, what: impl Into<String>, observed: bool) {
        self.found.borrow_mut().promised.push(Fact::new(what, observed));
    }

    /// Records that so many orders may exist although no client in the ledger knows: the drill's clients got no answer.
    pub(super) fn may_exist(&self, orders: u64) {
        self.found.borrow_mut().unanswered += orders;
    }

    /// Records how long the system took to recover: the report then has the line of recovery objectives.
    pub(crate) fn recovered_in(&self, recovery: Duration) {
        self.found.borrow_mut().recovery = Some(recovery);
    }

    /// Waits for the time of the outage. Returns how many orders were accepted meanwhile.
    pub(crate) async fn wait_outage(&self) -> u64 {
        let from = SystemTime::now();
        sleep(self.outage).await;
        self.accepted_since(from)
    }

    /// Waits for the time of the outage, and claims that orders were accepted meanwhile.
    pub(crate) async fn accepted_meanwhile(&self) {
        let accepted = self.wait_outage().await;
        let seconds = self.outage.as_secs();
        self.promised(format!("{accepted} orders were accepted in {seconds} s of the outage"), accepted > 0);
    }

    /// Claims that orders are accepted after this moment.
    pub(crate) async fn accepted_again(&self, from: SystemTime) {
        self.until_promised("orders are accepted again", async || Ok(self.accepted_since(from) > 0)).await;
    }

    /// Waits until what the drill does has taken effect.
    pub(crate) async fn until_injected(&self, sign: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) {
        self.seen_injected(sign, async || Ok(is_so().await?.then(|| sign.to_owned()))).await;
    }

    /// Waits until the system has done what it promises.
    pub(crate) async fn until_promised(&self, sign: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) {
        self.seen_promised(sign, async || Ok(is_so().await?.then(|| sign.to_owned()))).await;
    }

    /// The same as [`until_injected`](Self::until_injected). `check` says in words what it has seen, or `None`.
    pub(crate) async fn seen_injected(
        &self,
        expected: &str,
        check: impl AsyncFnMut() -> Result<Option<String>>,
    ) {
        let seen = self.look_for(expected, check).await;
        self.found.borrow_mut().injected.push(seen);
    }

    /// The same as [`until_promised`](Self::until_promised). `check` says in words what it has seen, or `None`.
    pub(crate) async fn seen_promised(
        &self,
        expected: &str,
        check: impl AsyncFnMut() -> Result<Option<String>>,
    ) {
        let seen = self.look_for(expected, check).await;
        self.found.borrow_mut().promised.push(seen);
    }

    /// Waits until `check` says in words what it has seen.
    async fn look_for(&self, expected: &str, mut check: impl AsyncFnMut() -> Result<Option<String>>) -> Fact {
        let deadline = longer(FELT_DEADLINE);
        let end = Instant::now() + deadline;
        let mut last = String::new();
        while Instant::now() < end {
            match timeout(deadline, check()).await.map_err(Into::into).flatten() {
                Ok(Some(what)) => {
                    self.phase("felt", &what);
                    return Fact::new(what, true);
                }
                Ok(None) => {}
                Err(error) => last = format!(" ({error:#})"),
            }
            sleep(FELT_INTERVAL).await;
        }
        Fact::new(format!("{expected}{last}"), false)
    }

    /// Records orders that the drill has placed itself.
    pub(crate) fn acknowledge(&self, order: Uuid) {
        self.ledger.record(order, SystemTime::now());
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

    /// The options that run the drill like this.
    pub(super) fn options(&self) -> String {
        let Self { rate, times, seed, .. } = self;
        let outage = self.outage.as_millis();
        let times = if *times == 1 { String::new() } else { format!(" --times {times}") };
        let altered = self.system.alteration().options();
        format!("--rate {rate} --outage {outage}ms --seed {seed}{times}{altered}")
    }

    /// The number of orders that a customer has in the database, acknowledged or not.
    pub(crate) async fn orders_of(&self, customer: Uuid) -> Result<usize> {
        let count = format!("select count(*)::text from orders.orders where customer_id = '{customer}'");
        self.system.number(&count).await
    }

    /// How many events the order service has published since it was started.
    pub(crate) async fn published(&self) -> Result<f64> {
        self.system.metric("orders", "outbox_published_total").await
    }

    /// How many orders were acknowledged since this moment.
    pub(crate) fn accepted_since(&self, from: SystemTime) -> u64 {
        self.ledger.recorded_between(from, SystemTime::now())
    }

    /// Waits until nothing is in progress any more, for drills that go on then.
    pub(crate) async fn settled(&self) -> Result<Reconciliation> {
        let wait = Wait::until_decided(longer(SETTLE_DEADLINE));
        Ok(self.system.settle(wait, &self.ledger).await?.reconciliation)
    }

    /// Waits until the system is quiescent, and reconciles. A drill that shows damage waits until all of it is there.
    pub(super) async fn settle(&self, breaks: &[Kind]) -> Result<Ended> {
        self.phase("drain", "waiting until nothing is pending and every order is confirmed or cancelled");
        let no_outbox = self.system.variant().is_some_and(|variant| !variant.has_outbox());
        let wait = if no_outbox || !breaks.is_empty() {
            Wait::until_still(longer(DAMAGE_DEADLINE))
        } else {
            Wait::until_decided(longer(SETTLE_DEADLINE))
        };
        let settled = self.system.settle(wait, &self.ledger).await?;
        if breaks.is_empty() {
            self.promise_what_clients_were_told().await?;
        }
        self.phase(
            "reconcile",
            "compared the acknowledged orders with the records of the services and the provider",
        );
        let mut load = self.summary.take().context("the drill has no load")?;
        for moved in self.moved.take() {
            load.sent += moved.sent;
            load.accepted += moved.accepted;
            load.failed += moved.failed;
            load.shed += moved.shed;
            moved
                .refused
                .into_iter()
                .for_each(|(status, count)| *load.refused.entry(status).or_default() += count);
            load.failures.extend(moved.failures);
        }
        Ok(Ended {
            load,
            settled,
            duplicates_dropped: self.duplicates_dropped().await,
            timed_out: count_time_outs(self.system).await? - self.timed_out_before,
        })
    }

    /// What the reconciliation does not compare: acknowledged cancellations, and the events that no service consumes.
    async fn promise_what_clients_were_told(&self) -> Result<()> {
        let cancelled = self.cancelled.take();
        let lost = self.system.lost_cancellations(&cancelled).await?;
        let what =
            format!("{} cancellations were acknowledged, {lost} of them did not happen", cancelled.len());
        self.promised(what, lost == 0);
        let confirmations = self.confirmations.take();
        if let Some(confirmations) = confirmations {
            match confirmations.compare(self.system).await {
                Ok(Some((what, all))) => self.promised(what, all),
                Ok(None) => {}
                Err(error) => {
                    let what = format!("the queue of OrderConfirmed was read ({error:#})");
                    self.injected(what, false);
                }
            }
        }
        Ok(())
    }

    /// How many duplicates each service has dropped since the drill began.
    pub(crate) async fn duplicates_dropped(&self) -> DuplicatesDropped {
        self.system.duplicates_dropped().await.since(self.duplicates_before)
    }

    /// Judges what was found.
    pub(super) fn report(&self, ended: Ended, refusals: Refusals) -> Report {
        let Ended { load, settled, duplicates_dropped, .. } = ended;
        let mut found = self.found.take();
        found.is_only_client = self.system.started_here();
        Report::new(found, load, refusals, &self.before, settled, duplicates_dropped)
    }

    /// Runs the drill, and shows the progress line meanwhile.
    pub(super) async fn with_progress<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut interval = interval(Duration::from_secs(1));
        loop {
            let reading = async {
                interval.tick().await;
                tokio::join!(Progress::read(self.system), self.system.pid(BROKER))
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
