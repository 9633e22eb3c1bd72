use std::sync::{Arc, Mutex, PoisonError};

/// Whether the broker answers, as one user of it sees it. Cheap to clone; all clones show the same.
///
/// A change is logged once, when it happens, however many attempts follow.
#[derive(Clone)]
pub struct Link {
    role: &'static str,
    /// `None` while it is up; else why it is down.
    down: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// A link that is not up yet.
    pub fn new(role: &'static str) -> Self {
        metrics::gauge!("broker_connected", "role" => role).set(0.0);
        Self { role, down: Arc::new(Mutex::new(Some("not connected yet".into()))) }
    }

    /// How it is now.
    ///
    /// # Errors
    /// Why the broker cannot be used.
    pub fn state(&self) -> Result<(), String> {
        match self.down.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            None => Ok(()),
            Some(reason) => Err(reason.clone()),
        }
    }

    pub(crate) fn up(&self) {
        let was = self.down.lock().unwrap_or_else(PoisonError::into_inner).take();
        if was.is_some() {
            metrics::gauge!("broker_connected", "role" => self.role).set(1.0);
            tracing::info!(role = self.role, "the broker answers");
        }
    }

    pub(crate) fn down(&self, reason: &str) {
        let was = self.down.lock().unwrap_or_else(PoisonError::into_inner).replace(reason.to_owned());
        match was {
            None => {
                metrics::gauge!("broker_connected", "role" => self.role).set(0.0);
                tracing::warn!(role = self.role, reason, "the broker is away");
            }
            Some(was) if was != reason => {
                tracing::debug!(role = self.role, reason, "the broker is still away");
            }
            Some(_) => {}
        }
    }
}
