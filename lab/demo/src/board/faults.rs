//! Faults that the page can cause: one at a time, each ends by itself. Before it strikes, the person predicts.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::fault::Fault;
use crate::part::part;
use crate::reconciliation::{Ending, Kind, Reconciliation, Wait};
use crate::running_system::RunningSystem;

use super::answer::Busy;
use super::clock::now;
use super::load::{Answers, BoardLoad, NewOrders};
use super::work::Work;

/// How long a fault may last.
const SECONDS: std::ops::RangeInclusive<u64> = 2..=60;

/// Orders per second during a fault, if the page places none: without any, nothing would be tested.
const RATE: u32 = 20;

/// How long the load goes on after the repair.
const RECOVERY: Duration = Duration::from_secs(4);

/// How long everything may take to come to rest.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);

/// What a person asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strike {
    /// `broker`, `database`, `orders`, `inventory`, `billing` or `provider`.
    target: String,
    /// `kill` or `pause`.
    action: String,
    seconds: u64,
    prediction: Prediction,
}

/// The three questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prediction {
    /// What happens to new orders meanwhile.
    orders: NewOrders,
    /// Whether an acknowledged order is lost.
    lost: bool,
    /// Whether a customer is charged twice, or stock reserved twice.
    doubled: bool,
}

/// What the page shows of the active fault, or of the last one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FaultState {
    /// Counts up.
    number: u64,
    what: String,
    /// In milliseconds since 1970.
    began: u64,
    ends: u64,
    phase: Phase,
    predicted: Prediction,
    verdict: Option<FaultVerdict>,
    /// Why there is none.
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Phase {
    Active,
    /// Repaired; waiting until everything is at rest.
    Recovering,
    Over,
}

/// What was found out.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FaultVerdict {
    found: Prediction,
    /// How many of the three answers were right.
    right: u8,
    /// Orders that were placed while the fault lasted.
    answers: Answers,
    lost: u64,
    doubled: u64,
    /// Of any kind: also effects without a cause, wrong sums, and events out of order.
    findings: u64,
    acknowledged: u64,
    /// Seconds from the repair until everything was at rest.
    recovered_after: f64,
}

/// The active fault, or the last one.
pub(crate) type Faults = Work<Option<FaultState>, Begun>;

/// A fault that is to be carried out.
#[derive(Debug)]
pub(crate) struct Begun {
    fault: Fault<'static>,
    lasts: Duration,
    predicted: Prediction,
}

/// Begins a fault. It is repaired and judged whatever the client does then.
///
/// # Errors
/// [`Busy`]; or when there is no such fault.
pub(crate) fn begin(faults: &Faults, strike: &Strike) -> Result<()> {
    let target = part(&strike.target)?;
    let (fault, signal) = match strike.action.as_str() {
        "kill" => (Fault::Kill(target), "SIGKILL"),
        "pause" => (Fault::Freeze(target), "SIGSTOP"),
        other => bail!("unknown fault `{other}`"),
    };
    if !SECONDS.contains(&strike.seconds) {
        bail!("a fault lasts for {} to {} seconds", SECONDS.start(), SECONDS.end());
    }
    faults.begin(|state| {
        if let Some(active) = state.as_ref().filter(|active| active.phase != Phase::Over) {
            return Err(Busy(active.what.clone()).into());
        }
        *state = Some(FaultState {
            number: state.as_ref().map_or(1, |last| last.number + 1),
            what: format!("{target}: {signal} for {} s", strike.seconds),
            began: now(),
            ends: now() + strike.seconds * 1000,
            phase: Phase::Active,
            predicted: strike.prediction,
            verdict: None,
            error: None,
        });
        Ok(Begun { fault, lasts: Duration::from_secs(strike.seconds), predicted: strike.prediction })
    })
}

/// Carries out the faults that are begun, one after the other.
pub(crate) async fn carry_out(
    faults: &Faults,
    mut begun: mpsc::UnboundedReceiver<Begun>,
    system: &RunningSystem,
    load: &BoardLoad,
) {
    while let Some(fault) = begun.recv().await {
        let verdict = inject(faults, &fault, system, load).await;
        faults.change(|state| {
            let Some(state) = state else { return };
            state.phase = Phase::Over;
            match verdict {
                Ok(verdict) => state.verdict = Some(verdict),
                Err(error) => state.error = Some(format!("{error:#}")),
            }
        });
    }
}

async fn inject(
    faults: &Faults,
    fault: &Begun,
    system: &RunningSystem,
    load: &BoardLoad,
) -> Result<FaultVerdict> {
    let started_load = load.rate() == 0;
    if started_load {
        load.set_rate(RATE).await?;
    }
    let verdict = inject_under_load(faults, fault, system, load).await;
    // A rate that was chosen meanwhile stays.
    if started_load && load.rate() == RATE {
        load.set_rate(0).await?;
    }
    verdict
}

async fn inject_under_load(
    faults: &Faults,
    fault: &Begun,
    system: &RunningSystem,
    load: &BoardLoad,
) -> Result<FaultVerdict> {
    let lasting = async {
        let from = SystemTime::now();
        let injected = fault.fault.inject(system).await?;
        sleep(fault.lasts).await;
        let to = SystemTime::now();
        injected.repair(system).await.map(|_| (from, to))
    };
    let lasted = lasting.await;
    if lasted.is_err() {
        // It may have failed half-way.
        system.repair().await?;
    }
    let (from, to) = lasted?;
    faults.change(|state| state.iter_mut().for_each(|state| state.phase = Phase::Recovering));
    let repaired = Instant::now();
    sleep(RECOVERY).await;
    // While orders are placed, there is always one in progress.
    let rate = load.rate();
    load.set_rate(0).await?;
    let judged = judge(fault, load.answers_between(from, to), repaired, system, load).await;
    if load.rate() == 0 {
        load.set_rate(rate).await?;
    }
    judged
}

/// Waits until everything is at rest, and compares what was found with the prediction.
async fn judge(
    fault: &Begun,
    answers: Answers,
    repaired: Instant,
    system: &RunningSystem,
    load: &BoardLoad,
) -> Result<FaultVerdict> {
    let settled = system.settle(Wait::until_decided(SETTLE_DEADLINE), load.ledger()).await?;
    if let Some(why) = settled.undecided() {
        bail!("not everything was at rest after {SETTLE_DEADLINE:?}: {why}");
    }
    let read: &Reconciliation = &settled.reconciliation;
    let orders = |kind| read.affected.get(&kind).copied().unwrap_or_default();
    let lost = match settled.ending {
        // Before all effects had arrived.
        Ending::Violated => read.count(Kind::Missing, "orders"),
        _ => orders(Kind::Missing),
    };
    let doubled = orders(Kind::Doubled);
    let Answers { accepted, refused, hanging } = answers;
    ensure!(accepted + refused + hanging > 0, "no order was placed meanwhile");
    // What happened to most of them.
    let orders = if accepted >= refused.max(hanging) {
        NewOrders::Accepted
    } else if refused >= hanging {
        NewOrders::Refused
    } else {
        NewOrders::Hanging
    };
    let (found, predicted) = (Prediction { orders, lost: lost > 0, doubled: doubled > 0 }, fault.predicted);
    let right =
        [found.orders == predicted.orders, found.lost == predicted.lost, found.doubled == predicted.doubled];
    Ok(FaultVerdict {
        found,
        right: right.map(u8::from).iter().sum(),
        answers,
        lost,
        doubled,
        findings: read.findings.iter().map(|found| found.count).sum(),
        acknowledged: read.acknowledged,
        recovered_after: repaired.elapsed().as_secs_f64(),
    })
}
