use std::collections::BTreeMap;

use axum::{Json, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

/// Whether a service needs a part to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    /// Not ready without it.
    Yes,
    /// Ready without it: orders are accepted while the broker is unavailable.
    No,
}

type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Whether a service can do its work, and the state of each part.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// Whether every needed part is up.
    ready: bool,
    /// The state of each part, by name.
    #[schema(value_type = BTreeMap<String, Part>)]
    parts: BTreeMap<&'static str, Part>,
}

/// The state of one part.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Part {
    up: bool,
    /// Why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// The parts of a service's health. Each request to `/readyz` calls every probe, so the answer is as old as the probes'
/// knowledge: at most five seconds.
#[derive(Default)]
pub struct Health {
    probes: Vec<(&'static str, Needed, Probe)>,
}

impl Health {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. `probe` returns its last known state without waiting: `Err` says why the part is down.
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

    /// The answer to `/readyz`: 200 when every needed part is up, else 503; always with the state of each part.
    pub(crate) fn ready(&self) -> (StatusCode, Json<Readiness>) {
        let mut ready = true;
        let mut parts = BTreeMap::new();
        for (name, needed, probe) in &self.probes {
            let reason = probe().err();
            ready &= reason.is_none() || *needed == Needed::No;
            parts.insert(*name, Part { up: reason.is_none(), reason });
        }
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, Json(Readiness { ready, parts }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_needed_parts_decide_readiness_and_all_parts_are_shown() {
        let health = |database: bool, broker: bool| {
            let state = |up: bool| move || if up { Ok(()) } else { Err("unavailable".to_owned()) };
            let health = Health::new().with("database", Needed::Yes, state(database)).with(
                "broker",
                Needed::No,
                state(broker),
            );
            let (status, Json(body)) = health.ready();
            (status.as_u16(), serde_json::to_value(body).unwrap())
        };
        assert_eq!(health(true, true).0, 200);
        let (status, body) = health(true, false);
        assert_eq!((status, &body["parts"]["broker"]["reason"]), (200, &json!("unavailable")));
        assert_eq!(health(false, true).0, 503);
    }
}
