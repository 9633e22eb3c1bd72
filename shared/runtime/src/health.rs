use std::sync::Arc;

use axum::{Json, http::StatusCode};
use serde_json::{Map, Value, json};

/// Whether a service can do its work without something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Not ready without it.
    Yes,
    /// Ready without it, and worse off: orders are accepted while the broker is away.
    No,
}

type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a service's health is made of. A probe is asked whenever somebody asks for the health, so the answer is as old
/// as what the probe knows: none here is older than five seconds.
#[derive(Default)]
pub struct Health {
    probes: Vec<(&'static str, Needed, Probe)>,
}

impl Health {
    /// Nothing is needed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds something that health depends on. `probe` tells what it knows, at once: `Err` says why it is down.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        needed: Needed,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.probes.push((name, needed, Box::new(probe)));
        self
    }

    /// The answer to `/readyz`: 200 when all that is needed is up, else 503; either way with the state of each part.
    pub(crate) fn ready(self: &Arc<Self>) -> (StatusCode, Json<Value>) {
        let mut ready = true;
        let mut parts = Map::new();
        for (name, needed, probe) in &self.probes {
            let state = match probe() {
                Ok(()) => json!({ "up": true }),
                Err(reason) => {
                    ready &= *needed == Needed::No;
                    json!({ "up": false, "reason": reason })
                }
            };
            parts.insert((*name).to_owned(), state);
        }
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(json!({ "ready": ready, "parts": parts })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_decides_and_every_part_is_told() {
        let health = |database: bool, broker: bool| {
            let state = |up: bool| move || if up { Ok(()) } else { Err("away".to_owned()) };
            let health = Health::new().with("database", Needed::Yes, state(database)).with(
                "broker",
                Needed::No,
                state(broker),
            );
            let (status, Json(body)) = Arc::new(health).ready();
            (status.as_u16(), body)
        };
        assert_eq!(health(true, true).0, 200);
        let (status, body) = health(true, false);
        assert_eq!((status, &body["parts"]["broker"]["reason"]), (200, &json!("away")));
        assert_eq!(health(false, true).0, 503);
    }
}
