//! Experiments: each leaves out one protection, and checks that the audit notices.
//!
//! A promise that no missing protection can break is not being checked. Each experiment runs two systems, one complete and
//! one with a single protection left out, and injects the same fault into both. The complete one has to hold; the other
//! has to break the expected invariant. This shows that the checks can fail, which is what makes their silence worth
//! something.

mod commits;
mod consumers;
mod faults;
mod hang_up;
mod judge;
mod publisher;
mod relay;
mod writer;

pub(crate) use faults::copy_order;

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

pub use judge::Breach;

use super::{Setup, Stage};
use crate::Variant;

/// How the sabotaged system differs from the complete one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The lab programs run with `SABOTAGE` set to the experiment's name.
    Part,
    /// The order service is replaced by a variant.
    Variant(Variant),
    /// Settings switch the protection off.
    Settings(&'static [(&'static str, &'static str)]),
}

/// One protection to leave out, and the fault that shows that it is missing.
pub struct Experiment {
    pub name: &'static str,
    pub left_out: LeftOut,
    /// The invariants of which one has to break. A lost event can show as not delivered (I3) or as not drained (I8).
    pub invariants: &'static [&'static str],
    /// The fault that both systems receive.
    pub fault: &'static str,
    run: fn(Setup) -> Running,
}

type Running = Pin<Box<dyn Future<Output = Result<Option<Breach>>>>>;

/// All experiments, by the part that they replace.
pub static ALL: [&[Experiment]; 6] = [
    &relay::EXPERIMENTS,
    &publisher::EXPERIMENTS,
    &consumers::EXPERIMENTS,
    &writer::EXPERIMENTS,
    &hang_up::EXPERIMENTS,
    &commits::EXPERIMENTS,
];

/// How long a sabotage may go unnoticed, from the start of its system.
const NOTICE_DEADLINE: Duration = Duration::from_secs(120);

/// The result of an experiment.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    /// The expected invariants.
    pub invariants: &'static [&'static str],
    /// What broke in the sabotaged system.
    pub caught: Option<Breach>,
    /// What broke in the complete one: a false alarm.
    pub false_alarm: Option<Breach>,
    /// From the start of the systems until the sabotage was noticed.
    pub seconds: f64,
}

impl Finding {
    /// Whether the complete system held and the sabotaged one broke as expected, in time.
    pub fn is_as_expected(&self) -> bool {
        let expected = self.caught.as_ref().is_some_and(|breach| self.invariants.contains(&breach.invariant));
        expected && self.false_alarm.is_none() && self.seconds < NOTICE_DEADLINE.as_secs_f64()
    }
}

impl Experiment {
    /// Runs both systems at the same time.
    ///
    /// # Errors
    /// When they cannot be set up, or the fault did not happen: the result is unknown then.
    pub async fn run(&self) -> Result<Finding> {
        let complete = Setup { lab: true, ..Setup::default() };
        let sabotaged = match self.left_out {
            LeftOut::Part => complete.clone().with("SABOTAGE", self.name),
            LeftOut::Variant(variant) => Setup { variant: Some(variant), ..complete.clone() },
            LeftOut::Settings(settings) => {
                settings.iter().fold(complete.clone(), |setup, (name, value)| setup.with(name, *value))
            }
        };
        let began = Instant::now();
        let timed = async {
            let caught = (self.run)(sabotaged).await;
            (caught, began.elapsed().as_secs_f64())
        };
        let (false_alarm, (caught, seconds)) = tokio::join!((self.run)(complete), timed);
        Ok(Finding {
            name: self.name,
            invariants: self.invariants,
            caught: caught.with_context(|| format!("{}, sabotaged", self.name))?,
            false_alarm: false_alarm.with_context(|| format!("{}, complete", self.name))?,
            seconds,
        })
    }
}

/// A stage on a virtual host of the shared broker. Both exist until the experiment is over.
async fn stage(setup: Setup) -> Result<(Stage, testbed::TestVhost)> {
    let vhost = testbed::vhost().await?;
    Ok((Stage::ready(&vhost.url(), setup).await?, vhost))
}
