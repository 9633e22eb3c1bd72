use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::running_system::RunningSystem;

use super::faults::Faults;
use super::load::BoardLoad;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct BoardState {
    pub(crate) port: u16,
    pub(crate) token: Arc<str>,
    pub(crate) system: Arc<RunningSystem>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) load: Arc<BoardLoad>,
    pub(crate) snapshots: watch::Receiver<Arc<str>>,
    pub(crate) streams: Arc<Semaphore>,
}
