use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::running_system::RunningSystem;

use super::faults::Faults;
use super::load::BoardLoad;
use super::recording::Recorder;
use super::steps::Steps;
use super::twin::Twin;

/// What the handlers and the collector share.
#[derive(Clone)]
pub(crate) struct BoardState {
    pub(crate) system: Arc<RunningSystem>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) twin: Arc<Twin>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) load: Arc<BoardLoad>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) snapshots: watch::Receiver<Arc<str>>,
    pub(crate) streams: Arc<Semaphore>,
}
