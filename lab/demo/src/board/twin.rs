//! The twin: the same drill, the same orders and the same fault on two systems of their own, one with the order service and
//! one with a variant in its place. Two verdicts next to each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use flaws::{Flaw, LeftOut};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::choice::Choice;
use crate::drills::{self, DrillOptions, SERVICE, run_both};
use crate::terminal::Terminal;

use super::answer::Busy;
use super::clock::now;

/// The drill of the twin. Its fault is felt by every way to publish.
const DRILL: &str = "broker-kill";

/// Two systems share the machine with the one that is shown.
const OPTIONS: DrillOptions = DrillOptions { rate: 60, outage: None, times: 1, seed: 1 };

/// How often the page is told what the drills have printed.
const SHOW_INTERVAL: Duration = Duration::from_millis(500);

/// The last lines of the drills that the page shows.
const LINES: usize = 12;

/// What a person asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compare {
    /// The name of a variant, such as `dual-write`.
    variant: String,
}

/// What the page shows of the comparison that runs, or of the last one.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TwinState {
    variant: &'static str,
    /// In milliseconds since 1970.
    began: u64,
    running: bool,
    /// What the two drills have printed last.
    lines: Vec<String>,
    /// That of the order service, and that of the variant.
    verdicts: Vec<TwinVerdict>,
    /// Why there is none.
    error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct TwinVerdict {
    name: &'static str,
    verdict: String,
    reason: String,
    /// What is missing, doubled or wrong, each with the first ids.
    findings: Value,
}

/// The comparison that runs, or the last one; and the way to the task that carries them out.
#[derive(Debug)]
pub(crate) struct Twin {
    state: Mutex<Option<TwinState>>,
    begun: mpsc::UnboundedSender<Flaw>,
}

impl Twin {
    /// The receiver is for [`carry_out`](Self::carry_out).
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Flaw>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        (Self { state: Mutex::default(), begun }, receiver)
    }

    pub(crate) fn state(&self) -> Option<TwinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a comparison.
    ///
    /// # Errors
    /// [`Busy`] while another one runs; or when there is no such variant.
    pub(crate) fn begin(&self, compare: &Compare) -> Result<()> {
        let named = Flaw::named(&compare.variant);
        let Some(variant) = named.filter(|flaw| flaw.row().left_out == LeftOut::Variant) else {
            bail!("unknown variant `{}`", compare.variant);
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.as_ref().is_some_and(|state| state.running) {
            return Err(Busy("a comparison runs".to_owned()).into());
        }
        *state =
            Some(TwinState { variant: variant.name(), began: now(), running: true, ..TwinState::default() });
        drop(state);
        Ok(self.begun.send(variant)?)
    }

    /// Carries out the comparisons that are begun, one after the other.
    pub(crate) async fn carry_out(&self, mut begun: mpsc::UnboundedReceiver<Flaw>, choice: Choice) {
        while let Some(variant) = begun.recv().await {
            let lines = Arc::new(Mutex::new(vec![]));
            let terminal = Terminal::new(false).copied_to(lines.clone());
            let comparing = compare(choice, variant, &terminal);
            tokio::pin!(comparing);
            let verdicts = loop {
                if let Ok(verdicts) = timeout(SHOW_INTERVAL, &mut comparing).await {
                    break verdicts;
                }
                self.show(&lines);
            };
            self.show(&lines);
            if let Some(state) = self.state.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                state.running = false;
                match verdicts {
                    Ok(verdicts) => state.verdicts = verdicts,
                    Err(error) => state.error = Some(format!("{error:#}")),
                }
            }
        }
    }

    fn show(&self, lines: &Mutex<Vec<String>>) {
        let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let last = lines[lines.len().saturating_sub(LINES)..].to_vec();
        if let Some(state) = self.state.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            state.lines = last;
        }
    }
}

async fn compare(choice: Choice, variant: Flaw, terminal: &Terminal) -> Result<Vec<TwinVerdict>> {
    let drill = drills::find(DRILL)?;
    let [service, other] = run_both(choice, drill, OPTIONS, variant, terminal).await?;
    let verdict = |name, document: &Value| {
        let report = &document["report"];
        let field = |name: &str| report[name].as_str().unwrap_or("INTERRUPTED").to_uppercase();
        TwinVerdict {
            name,
            verdict: field("verdict"),
            reason: report["reason"].as_str().unwrap_or_default().to_owned(),
            findings: report["reconciliation"]["findings"].clone(),
        }
    };
    Ok(vec![verdict(SERVICE, &service.1), verdict(variant.name(), &other.1)])
}
