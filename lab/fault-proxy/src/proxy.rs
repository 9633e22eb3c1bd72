use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    Error, Fault, Route, Stats, addresses, control, listener,
    route_state::{RouteState, Routes},
};

/// A running proxy. Dropping it closes all its sockets and ends all its tasks.
#[derive(Debug)]
pub struct Proxy {
    routes: Arc<Routes>,
    tasks: JoinSet<()>,
}

impl Proxy {
    /// Checks the routes, listens on all of them and starts to forward.
    ///
    /// # Errors
    /// When a route is invalid, an address is refused, or a port is in use. Nothing runs then.
    pub async fn start(routes: Vec<Route>) -> Result<Self, Error> {
        let mut states = BTreeMap::new();
        let mut listeners = Vec::new();
        for route in routes {
            route.check()?;
            addresses::check_listen(&route)?;
            addresses::resolve(&route.upstream).await?;
            let Entry::Vacant(entry) = states.entry(route.name.clone()) else {
                return Err(Error::InvalidRoute { route: route.name, cause: "another route has this name" });
            };
            let (listener, address) = listen(route.listen).await?;
            let state = RouteState::new(route, address);
            listeners.push((listener, Arc::clone(&state)));
            entry.insert(state);
        }
        let mut tasks = JoinSet::new();
        for (listener, state) in listeners {
            tasks.spawn(listener::accept(listener, Arc::clone(&state)));
            tasks.spawn(async move { state.faults.expire().await });
        }
        Ok(Self { routes: Arc::new(Routes(states)), tasks })
    }

    /// Serves the control API on a loopback address and returns that address.
    ///
    /// # Errors
    /// When the address is not loopback, or its port is in use.
    pub async fn serve_control(&mut self, address: SocketAddr) -> Result<SocketAddr, Error> {
        if !address.ip().to_canonical().is_loopback() {
            let cause = "the control API has no authentication and listens on loopback only";
            return Err(Error::RefusedListenAddress { address, cause });
        }
        let (listener, address) = listen(address).await?;
        self.tasks.spawn(control::serve(listener, Arc::clone(&self.routes)));
        Ok(address)
    }

    /// The names and the listen addresses of all routes.
    pub fn addresses(&self) -> BTreeMap<String, SocketAddr> {
        self.routes.0.iter().map(|(name, state)| (name.clone(), state.address)).collect()
    }

    /// The listen address of a route, with its real port.
    ///
    /// # Errors
    /// When no route has this name.
    pub fn address(&self, name: &str) -> Result<SocketAddr, Error> {
        Ok(self.routes.get(name)?.address)
    }

    /// Adds a fault and returns when it is in force.
    ///
    /// Bytes that are sent after the return, and connections that are opened after it, meet the fault. After a cut,
    /// the open connections are reset by then.
    ///
    /// # Errors
    /// When no route has this name, the fault is invalid, or the route has [`MAX_FAULTS`](crate::MAX_FAULTS) faults.
    pub async fn inject(&self, name: &str, fault: Fault) -> Result<(), Error> {
        self.routes.get(name)?.inject(fault).await
    }

    /// Replaces all faults of a route and returns when the new ones are in force.
    ///
    /// # Errors
    /// As for [`inject`](Self::inject). All faults are checked first: an invalid one leaves the list as it is.
    pub async fn replace(&self, name: &str, faults: Vec<Fault>) -> Result<(), Error> {
        self.routes.get(name)?.replace(faults).await
    }

    /// Ends all faults of a route and returns when none is in force.
    ///
    /// # Errors
    /// When no route has this name.
    pub async fn clear(&self, name: &str) -> Result<(), Error> {
        self.replace(name, Vec::new()).await
    }

    /// Returns what a route has done since the start.
    ///
    /// # Errors
    /// When no route has this name.
    pub fn stats(&self, name: &str) -> Result<Stats, Error> {
        Ok(self.routes.get(name)?.counters.now())
    }

    /// Waits until the stats of a route meet a condition, and returns those.
    ///
    /// # Errors
    /// When no route has this name, or the deadline passes first.
    pub async fn until(
        &self,
        name: &str,
        deadline: Duration,
        condition: impl FnMut(&Stats) -> bool,
    ) -> Result<Stats, Error> {
        let counters = &self.routes.get(name)?.counters;
        counters.until(deadline, condition).await.map_err(|stats| Error::DeadlinePassed {
            route: name.to_owned(),
            deadline,
            stats,
        })
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |cause| Error::Listen { address, cause };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}
