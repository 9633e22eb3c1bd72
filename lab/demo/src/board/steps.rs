//! Step mode: on a separate system one order stops at crash points. There a person continues the process, freezes it or
//! kills it, with the line of code beside it, and reads the verdict.
//!
//! The lab programs stop themselves (SIGSTOP) at the points that a file names: see `lab/flawed-services/src/crash.rs`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::choice::Choice;

use super::answer::Busy;
use super::step_system::{StepAction, StepSystem, StepVerdict, Stopped};
use super::work::Work;

/// What a person asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum StepRequest {
    /// Start the system.
    Start,
    /// Stop it.
    Stop,
    /// Place an order that stops at these crash points.
    Place { points: Vec<String> },
    /// Do something to a process that has stopped.
    Act { pid: u32, action: StepAction },
}

/// What the page shows.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepsState {
    pub(crate) phase: StepPhase,
    /// The crash points, in the order in which an event passes them.
    pub(crate) points: Vec<&'static str>,
    pub(crate) stopped: Vec<Stopped>,
    /// What has happened to this order so far, in words.
    pub(crate) lines: Vec<String>,
    pub(crate) verdict: Option<StepVerdict>,
    /// Why the system could not be started, or why there is no verdict.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepPhase {
    #[default]
    Off,
    Starting,
    /// An order can be placed.
    Ready,
    /// An order is on its way.
    Running,
}

/// The state of step mode.
pub(crate) type Steps = Work<StepsState, StepRequest>;

/// How often the stopped processes are looked for.
const TICK: Duration = Duration::from_millis(100);

impl StepsState {
    /// With nothing else known yet.
    pub(crate) fn in_phase(phase: StepPhase) -> Self {
        Self { phase, points: messaging::crash_points::ALL.to_vec(), ..Self::default() }
    }
}

/// Hands a request to the task, if it fits what is going on.
///
/// # Errors
/// [`Busy`], or when it does not fit otherwise.
pub(crate) fn begin(steps: &Steps, request: StepRequest) -> Result<()> {
    steps.begin(|state| {
        match (&request, state.phase) {
            (StepRequest::Start, StepPhase::Off) => {}
            (StepRequest::Start, _) => return Err(Busy("the step system runs".to_owned()).into()),
            (_, StepPhase::Off | StepPhase::Starting) => bail!("the step system does not run yet"),
            (StepRequest::Place { .. }, StepPhase::Running) => {
                return Err(Busy("an order is on its way".to_owned()).into());
            }
            (StepRequest::Place { points }, _) => {
                for point in points {
                    ensure!(state.points.contains(&point.as_str()), "unknown crash point `{point}`");
                }
            }
            (StepRequest::Act { pid, .. }, _) => {
                let stopped = state.stopped.iter().find(|stopped| stopped.pid == *pid && !stopped.frozen);
                stopped.with_context(|| format!("process {pid} does not wait at a crash point"))?;
            }
            (StepRequest::Stop, _) => {}
        }
        match &request {
            StepRequest::Start => *state = StepsState::in_phase(StepPhase::Starting),
            StepRequest::Place { .. } => *state = StepsState::in_phase(StepPhase::Running),
            StepRequest::Stop | StepRequest::Act { .. } => {}
        }
        Ok(request)
    })
}

/// Carries requests out, until it is dropped. Then the step system ends too.
pub(crate) async fn carry_out(
    steps: &Steps,
    mut requests: mpsc::UnboundedReceiver<StepRequest>,
    choice: Choice,
) {
    while let Some(request) = requests.recv().await {
        if !matches!(request, StepRequest::Start) {
            continue;
        }
        let ended = run(steps, &mut requests, choice).await;
        steps.change(|state| {
            *state = StepsState::in_phase(StepPhase::Off);
            state.error = ended.err().map(|error| format!("{error:#}"));
        });
    }
}

/// Runs a step system until a request stops it.
async fn run(
    steps: &Steps,
    requests: &mut mpsc::UnboundedReceiver<StepRequest>,
    choice: Choice,
) -> Result<()> {
    let mut system = StepSystem::start(choice).await?;
    steps.change(|state| state.phase = StepPhase::Ready);
    loop {
        let request = tokio::time::timeout(TICK, requests.recv()).await;
        match request {
            Ok(None | Some(StepRequest::Stop)) => return system.stop().await,
            Ok(Some(StepRequest::Start)) => {}
            Ok(Some(StepRequest::Place { points })) => system.place(&points)?,
            Ok(Some(StepRequest::Act { pid, action })) => system.act(pid, action).await?,
            // Nothing was asked for.
            Err(_) => {}
        }
        let verdict = system.tick().await?;
        steps.change(|state| {
            state.stopped.clone_from(system.stopped());
            state.lines.clone_from(system.lines());
            if let Some(verdict) = verdict {
                state.phase = StepPhase::Ready;
                match verdict {
                    Ok(verdict) => state.verdict = Some(verdict),
                    Err(error) => state.error = Some(format!("{error:#}")),
                }
            }
        });
    }
}
