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
use super::work::Work;

/// The drill of the twin. Its fault is felt by every way to publish.
const DRILL: &str = "broker-kill";

/// Two systems share the machine with the one that is shown.
const OPTIONS: DrillOptions = DrillOptions { rate: None, outage: None, times: 1, seed: 1 };

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

/// The comparison that runs, or the last one.
pub(crate) type Twin = Work<Option<TwinState>, Flaw>;

/// Begins a comparison.
///
/// # Errors
/// [`Busy`] while another one runs; or when there is no such variant.
pub(crate) fn begin(twin: &Twin, compare: &Compare) -> Result<()> {
    let named = Flaw::named(&compare.variant);
    let Some(variant) = named.filter(|flaw| flaw.row().left_out == LeftOut::Variant) else {
        bail!("unknown variant `{}`", compare.variant);
    };
    twin.begin(|state| {
        if state.as_ref().is_some_and(|state| state.running) {
            return Err(Busy("a comparison runs".to_owned()).into());
        }
        *state =
            Some(TwinState { variant: variant.name(), began: now(), running: true, ..TwinState::default() });
        Ok(variant)
    })
}

/// Carries out the comparisons that are begun, one after the other.
pub(crate) async fn carry_out(twin: &Twin, mut begun: mpsc::UnboundedReceiver<Flaw>, choice: Choice) {
    while let Some(variant) = begun.recv().await {
        let lines = Arc::new(Mutex::new(vec![]));
        let terminal = Terminal::new(false).copied_to(lines.clone());
        let comparing = compare(choice, variant, &terminal);
        tokio::pin!(comparing);
        let verdicts = loop {
            let compared = timeout(SHOW_INTERVAL, &mut comparing).await;
            let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            let last = lines[lines.len().saturating_sub(LINES)..].to_vec();
            twin.change(|state| state.iter_mut().for_each(|state| state.lines.clone_from(&last)));
            if let Ok(verdicts) = compared {
                break verdicts;
            }
        };
        twin.change(|state| {
            let Some(state) = state else { return };
            state.running = false;
            match verdicts {
                Ok(verdicts) => state.verdicts = verdicts,
                Err(error) => state.error = Some(format!("{error:#}")),
            }
        });
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
