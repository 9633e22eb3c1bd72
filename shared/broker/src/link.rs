use std::sync::{Arc, Mutex, PoisonError};

/// Whether the broker answers, as one user of it sees it. Cheap to clone; all clones show the same.
///
/// A change is logged once, when it happens, however many attempts follow. The gauge of a role is 1 while all of its users
/// have their broker.
#[derive(Clone)]
pub struct Link {
    role: &'static str,
    /// How many users of this role are without it.
    without: Arc<Mutex<u32>>,
    /// `None` while it is up; else why it is down.
    down: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// A link that is not up yet.
    pub fn new(role: &'static str) -> Self {
        let link = Self {
            role,
            without: Arc::default(),
            down: Arc::new(Mutex::new(Some("not connected yet".into()))),
        };
        link.count(|without| without + 1);
        link
    }

    /// One more of the same role, not up yet.
    #[must_use]
    pub fn another(&self) -> Self {
        let another = Self {
            down: Arc::new(Mutex::new(Some("not connected yet".into()))),
            without: self.without.clone(),
            role: self.role,
        };
        another.count(|without| without + 1);
        another
    }

    fn count(&self, change: impl FnOnce(u32) -> u32) {
        let mut without = self.without.lock().unwrap_or_else(PoisonError::into_inner);
        *without = change(*without);
        metrics::gauge!("broker_connected", "role" => self.role).set(if *without == 0 { 1.0 } else { 0.0 });
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
            self.count(|without| without.saturating_sub(1));
            tracing::info!(role = self.role, "the broker answers");
        }
    }

    pub(crate) fn down(&self, reason: &str) {
        let was = self.down.lock().unwrap_or_else(PoisonError::into_inner).replace(reason.to_owned());
        match was {
            None => {
                self.count(|without| without + 1);
                tracing::warn!(role = self.role, reason, "the broker is away");
            }
            Some(was) if was != reason => {
                tracing::debug!(role = self.role, reason, "the broker is still away");
            }
            Some(_) => {}
        }
    }
}
