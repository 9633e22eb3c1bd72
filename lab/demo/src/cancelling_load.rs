//! A load whose clients cancel some of their orders at once, at any instance: a creation and a cancellation are then on their
//! way at the same time, at different relays. Without cancellations no two events of an order ever are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures_util::{StreamExt as _, stream};
use load_tests::{Answer, Load, Outcome, Summary};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::http;
use crate::ledger::Ledger;
use crate::load::RunningLoad;

const CANCEL_DEADLINE: Duration = Duration::from_secs(5);
/// How many cancellations wait for their answers at once. While a server is away, many do.
const AT_A_TIME: usize = 32;

/// A running load. Dropping it aborts it.
#[derive(Debug)]
pub(crate) struct CancellingLoad {
    load: RunningLoad,
    /// Ends after the load.
    cancelling: JoinHandle<()>,
    cancelled: Arc<Mutex<Vec<Uuid>>>,
}

/// What the clients were answered.
pub(crate) struct Sent {
    pub(crate) orders: Summary,
    /// The orders whose cancellation was answered with 200.
    pub(crate) cancelled: Vec<Uuid>,
}

impl CancellingLoad {
    /// Starts the load. One in `one_in` of the accepted orders is cancelled, at one of these order services; none without any.
    pub(crate) fn start(load: Load, urls: Vec<String>, one_in: u32, ledger: &Arc<Ledger>) -> Result<Self> {
        let (accepted, to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let (record, cancels) = (ledger.recorder(), !urls.is_empty());
        let load = RunningLoad::start(load, move |outcome: Outcome| {
            if let Answer::Accepted(id) = outcome.answer
                && cancels
                && fastrand::u32(..one_in) == 0
            {
                // Sending fails only after the task that cancels has ended.
                let _ = accepted.send(id);
            }
            record(outcome);
        });
        let cancelled = Arc::default();
        let cancelling = tokio::spawn(cancel(http::client()?, urls, to_cancel, Arc::clone(&cancelled)));
        Ok(Self { load, cancelling, cancelled })
    }

    /// How many cancellations were answered with 200 so far.
    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Ends the load, and waits for the cancellations that are on their way.
    pub(crate) async fn stop(mut self) -> Result<Sent> {
        let Self { load, cancelling, cancelled } = &mut self;
        let orders = load.stop().await?;
        // What was not sent by then is not cancelled.
        if let Ok(ended) = timeout(2 * CANCEL_DEADLINE, cancelling).await {
            ended?;
        }
        let cancelled = std::mem::take(&mut *cancelled.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Sent { orders, cancelled })
    }
}

impl Drop for CancellingLoad {
    fn drop(&mut self) {
        self.cancelling.abort();
    }
}

async fn cancel(
    client: reqwest::Client,
    urls: Vec<String>,
    mut to_cancel: mpsc::UnboundedReceiver<Uuid>,
    cancelled: Arc<Mutex<Vec<Uuid>>>,
) {
    let orders = stream::poll_fn(|context| to_cancel.poll_recv(context));
    orders
        .for_each_concurrent(AT_A_TIME, async |id| {
            // At random: the load goes to one instance after the other, and any rule would cancel at some of them only.
            let url = format!("{}/orders/{id}/cancellation", urls[fastrand::usize(..urls.len())]);
            let answer = client.post(url).timeout(CANCEL_DEADLINE).send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                cancelled.lock().unwrap_or_else(PoisonError::into_inner).push(id);
            }
        })
        .await;
}
