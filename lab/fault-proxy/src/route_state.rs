use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use crate::{Error, Fault, Route, active_faults::ActiveFaults, stats::Counters};

/// How many faults may be active on a route.
pub const MAX_FAULTS: usize = 16;

/// The routes by name. The control server shares them; they do not keep a task alive.
#[derive(Debug)]
pub(crate) struct Routes(pub(crate) BTreeMap<String, Arc<RouteState>>);

/// What the tasks of one route share.
#[derive(Debug)]
pub(crate) struct RouteState {
    pub(crate) route: Route,
    pub(crate) address: SocketAddr,
    pub(crate) faults: ActiveFaults,
    pub(crate) counters: Counters,
}

impl Routes {
    pub(crate) fn get(&self, name: &str) -> Result<&RouteState, Error> {
        self.0.get(name).map(|state| &**state).ok_or_else(|| Error::UnknownRoute(name.to_owned()))
    }
}

impl RouteState {
    pub(crate) fn new(route: Route, address: SocketAddr) -> Arc<Self> {
        Arc::new(Self { route, address, faults: ActiveFaults::new(), counters: Counters::default() })
    }

    /// Adds a fault and returns when it is in force.
    pub(crate) async fn inject(&self, fault: Fault) -> Result<(), Error> {
        fault.check()?;
        tracing::info!(route = self.route.name, ?fault, "a fault is added");
        if !self.faults.add(fault, MAX_FAULTS) {
            return Err(too_many_faults());
        }
        self.faults.in_force().await;
        Ok(())
    }

    /// Replaces all faults and returns when the new ones are in force.
    pub(crate) async fn replace(&self, faults: Vec<Fault>) -> Result<(), Error> {
        if faults.len() > MAX_FAULTS {
            return Err(too_many_faults());
        }
        faults.iter().try_for_each(Fault::check)?;
        tracing::info!(route = self.route.name, ?faults, "the faults are replaced");
        self.faults.replace(faults);
        self.faults.in_force().await;
        Ok(())
    }
}

fn too_many_faults() -> Error {
    Error::InvalidFault(format!("a route has at most {MAX_FAULTS} faults"))
}
