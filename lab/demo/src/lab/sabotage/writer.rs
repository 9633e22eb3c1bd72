//! The order write: one commit for the order and its event.

use anyhow::{Result, ensure};

use super::{
    Breach, Experiment, LeftOut, Setup,
    faults::{CrashFile, gone},
    judge::judge,
    stage,
};
use crate::Variant;

pub(super) static EXPERIMENTS: [Experiment; 1] = [Experiment {
    name: "dual-write",
    left_out: LeftOut::Variant(Variant::DualWrite),
    invariants: &["I2", "I3"],
    fault: "the order service is killed after the order's commit",
    run: |setup| Box::pin(killed_after_order(setup)),
}];

async fn killed_after_order(setup: Setup) -> Result<Option<Breach>> {
    let crash_file = CrashFile::new();
    let (stage, _vhost) = stage(setup.crashing_at("order-written:kill", crash_file.path())).await?;
    ensure!(stage.order().await.is_err(), "the process was to die before it answered");
    crash_file.process().await?;
    gone(&stage, "orders").await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}
