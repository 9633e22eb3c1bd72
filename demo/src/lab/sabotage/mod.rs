//! Every protection, left out once: does anybody notice?
//!
//! A promise that no missing protection could break is not being watched. Each experiment sets up two systems in drill
//! builds, one whole and one with a single protection switched off, and lets the same fault strike both. The whole one
//! has to hold; the other has to break, by the invariant that was foretold. Proof that the checks can fail is what makes
//! their silence worth something.

mod consumers;
mod judge;
mod publisher;
mod relay;
mod strike;
mod writer;

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

pub use judge::Breach;

use super::{Setup, Stage};

/// One protection to leave out, and the fault that finds it missing.
pub struct Experiment {
    /// The switch, as `DRILL_SABOTAGE` calls it.
    pub name: &'static str,
    /// The invariants of which one has to go red. What is lost can show as not delivered (I3), or as not drained (I8).
    pub invariants: &'static [&'static str],
    /// The fault that strikes both systems.
    pub fault: &'static str,
    run: fn(Setup) -> Running,
}

type Running = Pin<Box<dyn Future<Output = Result<Option<Breach>>>>>;

/// All of them.
pub static ALL: [&[Experiment]; 4] =
    [&relay::EXPERIMENTS, &publisher::EXPERIMENTS, &consumers::EXPERIMENTS, &writer::EXPERIMENTS];

/// How long a sabotage may go unnoticed, from the start of its system.
const NOTICED_WITHIN: Duration = Duration::from_secs(120);

/// What came of an experiment.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The switch.
    pub name: &'static str,
    /// What was foretold.
    pub invariants: &'static [&'static str],
    /// What broke in the sabotaged system.
    pub caught: Option<Breach>,
    /// What broke in the whole one: a false alarm.
    pub false_alarm: Option<Breach>,
    /// From the start of the systems until the sabotage was noticed.
    pub seconds: f64,
}

impl Finding {
    /// Whether the whole system held and the sabotaged one broke as foretold, in time.
    pub fn is_as_foretold(&self) -> bool {
        let foretold = self.caught.as_ref().is_some_and(|breach| self.invariants.contains(&breach.invariant));
        foretold && self.false_alarm.is_none() && self.seconds < NOTICED_WITHIN.as_secs_f64()
    }
}

impl Experiment {
    /// Runs both systems at the same time.
    ///
    /// # Errors
    /// When they cannot be set up, or the fault did not strike: nothing is known then.
    pub async fn run(&self) -> Result<Finding> {
        let whole = Setup { drill: true, ..Setup::default() };
        let sabotaged = whole.clone().with("DRILL_SABOTAGE", self.name);
        let began = Instant::now();
        let timed = async {
            let caught = (self.run)(sabotaged).await;
            (caught, began.elapsed().as_secs_f64())
        };
        let (false_alarm, (caught, seconds)) = tokio::join!((self.run)(whole), timed);
        Ok(Finding {
            name: self.name,
            invariants: self.invariants,
            caught: caught.with_context(|| format!("{}, sabotaged", self.name))?,
            false_alarm: false_alarm.with_context(|| format!("{}, whole", self.name))?,
            seconds,
        })
    }
}

/// A stage on a virtual host of the shared broker. Both live until the experiment is over.
async fn stage(setup: Setup) -> Result<(Stage, testbed::TestVhost)> {
    let vhost = testbed::vhost().await?;
    Ok((Stage::ready(&vhost.url(), setup).await?, vhost))
}
