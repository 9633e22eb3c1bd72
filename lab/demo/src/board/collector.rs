//! Reads the running system again and again, and tells every open page.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::board_state::BoardState;
use super::clock::now;
use super::count::Count;
use super::faults::FaultState;
use super::moves::{self, Reading};
use super::parts::{self, Metrics, Parts};
use super::steps::StepsState;
use super::twin::TwinState;

/// How often the page is told.
const INTERVAL: Duration = Duration::from_millis(500);

/// The pause after a count is so many times as long as it took: with a million orders it takes seconds, and it should
/// cost the database little.
const PAUSE: u32 = 30;

const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// What is on top of the page must not be older than this, whatever it costs.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const COUNT_DEADLINE: Duration = Duration::from_secs(20);

/// For so long no consumer may have anything to do before an effect that is missing counts as lost: the queues' depths are up
/// to five seconds old.
const IDLE_FOR: Duration = Duration::from_secs(7);

/// Everything that the page shows. What could not be read is `null`, never zero.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Snapshot {
    /// Milliseconds since 1970.
    at: u64,
    parts: Parts,
    metrics: Metrics,
    /// The events that were written, published or applied since the last snapshot. `null` also if they are too many.
    moves: Value,
    /// How many events are pending in each lane of each outbox.
    pending: Value,
    /// How many events are published, and not applied by each service.
    waiting: Value,
    #[serde(flatten)]
    counted: Counted,
    /// Orders per second that the board places.
    load: u32,
    /// Whether the board can kill and freeze. Otherwise it shows the line to copy.
    can_act: bool,
    /// Whether it can start other systems, for the twin and for step mode.
    has_processes: bool,
    fault: Option<FaultState>,
    twin: Option<TwinState>,
    steps: StepsState,
}

/// The last count, or why there is none.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    reconciliation: Option<Value>,
    /// In milliseconds since 1970.
    unreadable_since: Option<u64>,
    unreadable_because: Option<String>,
}

/// Tells `pages` what is there, until it is dropped.
pub(crate) async fn collect(state: &BoardState, pages: watch::Sender<Arc<str>>) {
    let (idle, is_idle) = watch::channel(false);
    let (counted, latest) = watch::channel(Counted::default());
    let (readings, mut moves) = mpsc::channel::<Result<Reading>>(1);
    let telling = async {
        let mut tick = interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut busy_at = Instant::now();
        let mut last = Reading::default();
        loop {
            tick.tick().await;
            let (parts, metrics) = parts::read(&state.system).await;
            // A reading that is late leaves what waits as it was, and no move is shown twice.
            match moves.try_recv() {
                Ok(read) => last = read.unwrap_or_default(),
                Err(_) => last.moves = Value::Array(vec![]),
            }
            if !parts::consumers_are_idle(&metrics) {
                busy_at = Instant::now();
            }
            idle.send_replace(busy_at.elapsed() > IDLE_FOR);
            let snapshot = Snapshot {
                at: now(),
                parts,
                metrics,
                moves: last.moves.clone(),
                pending: last.pending.clone(),
                waiting: last.waiting.clone(),
                counted: latest.borrow().clone(),
                load: state.load.rate(),
                can_act: state.system.can_act(),
                has_processes: state.system.has_processes(),
                fault: state.faults.state(),
                twin: state.twin.state(),
                steps: state.steps.state(),
            };
            if let Ok(json) = serde_json::to_string(&snapshot) {
                let json: Arc<str> = json.into();
                state.recorder.keep(json.clone());
                pages.send_replace(json);
            }
        }
    };
    tokio::join!(count(state, &is_idle, counted), moves::follow(&state.system, readings), telling);
}

async fn count(state: &BoardState, is_idle: &watch::Receiver<bool>, latest: watch::Sender<Counted>) {
    let mut usual = SHORTEST_PAUSE / PAUSE;
    let mut count = Count::default();
    loop {
        let began = Instant::now();
        let idle = *is_idle.borrow();
        let reading = timeout(COUNT_DEADLINE, count.read(&state.system, state.load.ledger(), idle));
        let read = reading.await.map_err(Into::into).flatten();
        // One that was slow because the database was frozen says nothing about the next.
        usual = began.elapsed().min(usual.saturating_mul(2));
        let mut pause = (usual * PAUSE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        latest.send_modify(|latest| match read {
            Ok(read) => *latest = Counted { reconciliation: Some(read), ..Counted::default() },
            // The last numbers are no longer shown: nothing is known about them.
            Err(error) => {
                pause = SHORTEST_PAUSE;
                latest.reconciliation = None;
                latest.unreadable_since.get_or_insert_with(now);
                latest.unreadable_because = Some(format!("{error:#}"));
            }
        });
        sleep(pause).await;
    }
}
