//! What every drill needs: a load with a ledger, a live line, a wait for rest, a sum at the end.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use load_tests::{Answer, Load, Mix, Outcome, Saturation, Summary};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

use super::report::{Fact, Refusals, Report};
use super::{Options, Shop, Terminal};
use crate::audit::{Audit, Dropped};
use crate::ledger::Ledger;
use crate::target::Target;

/// What is not applied this long after the load has ended and everything runs again counts as missing.
const APPLIED_WITHIN: Duration = Duration::from_secs(60);
/// The same where nothing waits in an outbox: what was not heard of by then never will be.
const HEARD_WITHIN: Duration = Duration::from_secs(20);

/// The running system, the load on it, and what is shown meanwhile.
pub(crate) struct Stage<'a> {
    pub(crate) shop: &'a Shop,
    pub(crate) options: Options,
    terminal: &'a Terminal,
    ledger: Arc<Ledger>,
    started: Instant,
    phase: RefCell<&'static str>,
    /// How much had been done before: the live line counts from here.
    before: Option<Progress>,
    duplicates_before: Dropped,
}

/// A look at the database.
#[derive(Clone, Copy, Deserialize)]
struct Progress {
    waiting: u64,
    inventory: u64,
    billing: u64,
    confirmed: u64,
    cancelled: u64,
}

const PROGRESS: &str = "select json_build_object(
    'waiting', (select count(*) from orders.outbox where published_at is null and parked_at is null)
             + (select count(*) from inventory.outbox where published_at is null and parked_at is null)
             + (select count(*) from billing.outbox where published_at is null and parked_at is null),
    'inventory', (select count(*) from inventory.reservations),
    'billing', (select count(*) from billing.payments where state <> 'asked'),
    'confirmed', (select count(*) from orders.orders where status = 'confirmed'),
    'cancelled', (select count(*) from orders.orders where status = 'cancelled'))::text";

/// A load in the background. Dropping it ends it.
pub(crate) struct RunningLoad(JoinHandle<Result<Summary>>);

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RunningLoad {
    /// Waits for its end.
    pub(crate) async fn end(mut self) -> Result<Summary> {
        (&mut self.0).await.context("the load generator died")?
    }
}

/// One that has no end by itself: how long kills and starts take is not known beforehand.
pub(crate) struct EndlessLoad {
    load: RunningLoad,
    enough: Arc<AtomicBool>,
}

impl EndlessLoad {
    /// Ends it now, and waits for what is under way.
    pub(crate) async fn enough(self) -> Result<Summary> {
        self.enough.store(true, Ordering::Relaxed);
        self.load.end().await
    }
}

impl<'a> Stage<'a> {
    pub(crate) async fn new(shop: &'a Shop, terminal: &'a Terminal, options: Options) -> Result<Self> {
        let ledger = Arc::new(Ledger::open(&shop.ledger_path().await?)?);
        let mut stage = Self {
            shop,
            options,
            terminal,
            ledger,
            started: Instant::now(),
            phase: RefCell::new("steady"),
            before: None,
            duplicates_before: shop.duplicates_dropped().await,
        };
        stage.before = stage.look().await;
        Ok(stage)
    }

    /// Starts a load. Each acknowledgement is in the ledger before it is counted.
    pub(crate) fn load(&self, for_: Duration) -> RunningLoad {
        self.start(for_).load
    }

    /// The same, until it is [enough](EndlessLoad::enough).
    pub(crate) fn load_until_enough(&self) -> EndlessLoad {
        self.start(Duration::MAX)
    }

    fn start(&self, for_: Duration) -> EndlessLoad {
        let load = Load { mix: Mix::Real, ..Load::new(self.shop.orders_url(), self.options.rate, for_) };
        let enough = load.enough.clone();
        let task = tokio::spawn(load_tests::run(load, self.note()));
        EndlessLoad { load: RunningLoad(task), enough }
    }

    /// Starts as many clients, each of which sends its next order when the last one is answered.
    pub(crate) fn crowd(&self, clients: u32, for_: Duration) -> RunningLoad {
        let load = Saturation { url: self.shop.orders_url().to_owned(), connections: clients, for_, seed: 1 };
        RunningLoad(tokio::spawn(load_tests::saturate(load, self.note())))
    }

    /// Notes what was promised.
    fn note(&self) -> impl Fn(Outcome) + Clone + Send + Sync + 'static {
        let ledger = self.ledger.clone();
        move |outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                ledger.note(id, outcome.finished);
            }
        }
    }

    /// Names what is going on; it stands in the live line.
    pub(crate) fn phase(&self, name: &'static str, what: impl AsRef<str>) {
        *self.phase.borrow_mut() = name;
        let seconds = self.started.elapsed().as_secs_f64();
        self.terminal.say(format!("  {seconds:5.1} s  {name:<8} {}", what.as_ref()));
    }

    /// How many orders were acknowledged in this period.
    pub(crate) fn accepted_between(&self, from: SystemTime, to: SystemTime) -> u64 {
        self.ledger.noted_between(from, to)
    }

    /// Waits until every effect is there, then draws the sum. Past the deadline the sum is drawn as things are.
    /// `refusals` says whether orders had to be accepted all the time.
    pub(crate) async fn count(&self, facts: Vec<Fact>, load: Summary, refusals: Refusals) -> Result<Report> {
        self.phase("drain", "waiting until every order is confirmed or cancelled, and nothing is owed");
        // Without an outbox nothing says what is still to come.
        let no_outbox = self.shop.variant().is_some_and(|variant| !variant.keeps_outbox());
        let deadline = Instant::now() + if no_outbox { HEARD_WITHIN } else { APPLIED_WITHIN };
        let audit = loop {
            let late = Instant::now() >= deadline;
            match self.audit().await {
                Ok(audit) if late || !no_outbox && (audit.at_rest() || audit.beyond_hope()) => break audit,
                // The database may still be recovering.
                Err(error) if late => return Err(error),
                Ok(_) | Err(_) => sleep(Duration::from_millis(500)).await,
            }
        };
        self.phase("verify", "comparing the clients' acknowledgements with the books of all three services and of the provider");
        let now = self.shop.duplicates_dropped().await;
        let dropped = now.since(self.duplicates_before);
        Ok(Report::new(facts, load, refusals, audit, dropped))
    }

    async fn audit(&self) -> Result<Audit> {
        self.shop.audit(&self.ledger.acknowledged()?).await
    }

    /// Runs the drill and draws the live line beside it.
    pub(super) async fn with_progress<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut every = interval(Duration::from_secs(1));
        loop {
            let look = async {
                every.tick().await;
                tokio::join!(self.look(), self.shop.pid(&Target::Broker))
            };
            tokio::select! {
                done = &mut work => return done,
                (now, broker) = look => {
                    self.terminal.progress(self.line(now, broker.ok().map(|pid| pid.is_some())));
                }
            }
        }
    }

    async fn look(&self) -> Option<Progress> {
        serde_json::from_str(&self.shop.read(PROGRESS).await.ok()?).ok()
    }

    /// Unknown is `?`, never 0.
    fn line(&self, now: Option<Progress>, broker_runs: Option<bool>) -> String {
        let show = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
        let since = |figure: fn(Progress) -> u64| {
            show(now.zip(self.before).map(|(n, b)| figure(n).saturating_sub(figure(b))))
        };
        let broker = match broker_runs {
            Some(true) => "up",
            Some(false) => "DOWN",
            None => "?",
        };
        format!(
            "  {:5.1} s  {:<8} accepted {:>5}   in outboxes {:>5}   answered: inventory {:>5}, billing {:>5}   \
             confirmed {:>5}, cancelled {:>4}   broker {broker}",
            self.started.elapsed().as_secs_f64(),
            self.phase.borrow(),
            self.ledger.noted(),
            show(now.map(|now| now.waiting)),
            since(|progress| progress.inventory),
            since(|progress| progress.billing),
            since(|progress| progress.confirmed),
            since(|progress| progress.cancelled),
        )
    }
}
