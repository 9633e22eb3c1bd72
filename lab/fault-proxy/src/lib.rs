//! A TCP proxy that injects network faults between a service and PostgreSQL, RabbitMQ or an HTTP server.
//!
//! ```no_run
//! use std::time::Duration;
//! use fault_proxy::{Direction, Effect, Fault, Proxy, Route};
//!
//! # async fn example() -> Result<(), fault_proxy::Error> {
//! let proxy = Proxy::start(vec![Route::new("postgres", "127.0.0.1:5432")]).await?;
//! let address = proxy.address("postgres")?;
//! // The client connects to `address`. Its first COMMIT reaches the server; the answer never reaches the client.
//! let commit = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward: true };
//! proxy.set("postgres", Fault::new(commit, Direction::TowardUpstream, Duration::from_secs(60)).times(1))?;
//! # Ok(())
//! # }
//! ```
//!
//! What it cannot do: its kernel acknowledges what the peers send, so packet loss and retransmissions cannot be tested with
//! it. A refused connection is accepted and then reset: the client sees `ECONNRESET`, not `ECONNREFUSED`. It reads no
//! protocol, and finds no pattern inside TLS.

mod connection;
mod fault;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, lookup_host},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use fault::Active;
pub use fault::{Direction, Effect, Fault, MAX_FAULT_DURATION};

/// Further connections of a route are reset. Each buffers up to 1 MiB.
const MAX_CONNECTIONS: usize = 256;

const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// The pause after a failed accept: without file descriptors, the loop would use a whole processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One listen address and the upstream that its connections go to.
#[derive(Debug, Clone)]
pub struct Route {
    pub name: String,
    /// Port 0 takes a free port; [`Proxy::address`] returns it.
    pub listen: SocketAddr,
    /// Host and port. A host name is resolved again for each connection, since a restarted container may move.
    pub upstream: String,
    /// Permits a private or unspecified listen address.
    pub container_network: bool,
}

impl Route {
    /// A route that listens on a free loopback port.
    pub fn new(name: impl Into<String>, upstream: impl Into<String>) -> Self {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self { name: name.into(), listen, upstream: upstream.into(), container_network: false }
    }

    /// The same, to the server of a URL, which names host and port.
    ///
    /// # Errors
    /// When it is no URL.
    pub fn to(name: impl Into<String>, url: &str) -> Result<Self, Error> {
        Ok(Self::new(name, split(url)?.1))
    }
}

/// Splits a URL into what is before host and port, these, and what is after them.
fn split(url: &str) -> Result<(&str, &str, &str), Error> {
    let scheme = url.find("://").ok_or(Error::NoUrl)?;
    let end = url[scheme + 3..].find(['/', '?']).map_or(url.len(), |length| scheme + 3 + length);
    let start = url[..end].rfind('@').map_or(scheme + 3, |at| at + 1);
    Ok((&url[..start], &url[start..end], &url[end..]))
}

/// Reads `name=listen,upstream`, where `listen` is an IP address with a port.
impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(',')?)));
        let (name, (listen, upstream)) = parts.ok_or("expected name=listen,upstream")?;
        let listen = listen.parse().map_err(|_| "the listen address is an IP address and a port")?;
        Ok(Self { listen, ..Self::new(name, upstream) })
    }
}

/// What a route has done since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Connections that were reset at once: by a cut, or because the route was full.
    pub refused: u64,
    /// Connections that a fault has reset. A reset that a peer sent is passed on and not counted.
    pub resets: u64,
}

/// What the proxy refuses to do, or fails to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "failed to accept listen address {0}: it is not loopback, or not private with the option for containers"
    )]
    RefusedListenAddress(SocketAddr),
    #[error("failed to accept upstream {0}: {1} is neither a loopback nor a private address")]
    RefusedUpstream(String, SocketAddr),
    #[error("failed to resolve upstream {0}")]
    UnresolvedUpstream(String, #[source] io::Error),
    #[error("failed to listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    #[error("failed to find route {0:?}: no route has this name")]
    UnknownRoute(String),
    #[error("failed to find host and port: it is no URL")]
    NoUrl,
    #[error("failed to set a fault: {0}")]
    InvalidFault(&'static str),
}

/// What the tasks of one route share.
#[derive(Debug)]
struct RouteState {
    route: Route,
    address: SocketAddr,
    /// A connection holds this lock while it writes: bytes that are sent after a fault was set meet that fault.
    fault: watch::Sender<Option<Arc<Active>>>,
    stats: watch::Sender<Stats>,
    upstream: watch::Sender<String>,
    silenced: watch::Sender<()>,
}

impl RouteState {
    fn in_force(&self) -> Option<Arc<Active>> {
        self.fault.borrow().clone().filter(|active| active.is_in_force())
    }
}

/// A running proxy. Dropping it closes all its sockets and ends all its tasks.
#[derive(Debug)]
pub struct Proxy {
    routes: BTreeMap<String, Arc<RouteState>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on all routes and starts to forward.
    ///
    /// # Errors
    /// When an address is refused or a port is in use. Nothing runs then.
    pub async fn start(routes: Vec<Route>) -> Result<Self, Error> {
        let mut states = BTreeMap::new();
        let mut tasks = JoinSet::new();
        for route in routes {
            let ip = route.listen.ip().to_canonical();
            let permitted =
                ip.is_loopback() || route.container_network && (is_local(ip) || ip.is_unspecified());
            if !permitted {
                return Err(Error::RefusedListenAddress(route.listen));
            }
            resolve(&route.upstream).await?;
            let failed = |cause| Error::Listen(route.listen, cause);
            let listener = TcpListener::bind(route.listen).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            let (fault, stats) = (watch::Sender::default(), watch::Sender::default());
            let (upstream, silenced) = (watch::Sender::new(route.upstream.clone()), watch::Sender::default());
            let state = Arc::new(RouteState { address, fault, stats, upstream, silenced, route });
            tasks.spawn(accept(listener, state.clone()));
            states.insert(state.route.name.clone(), state);
        }
        Ok(Self { routes: states, _tasks: tasks })
    }

    /// The listen address of a route, with its real port.
    ///
    /// # Errors
    /// When no route has this name, as for all that follow.
    pub fn address(&self, name: &str) -> Result<SocketAddr, Error> {
        Ok(self.route(name)?.address)
    }

    /// The URL of a route's server with the route's address in it.
    ///
    /// # Errors
    /// When it is no URL.
    pub fn through(&self, name: &str, url: &str) -> Result<String, Error> {
        let (before, _, after) = split(url)?;
        Ok(format!("{before}{}{after}", self.address(name)?))
    }

    /// Lets new connections of a route go to this host and port. Those that are open stay where they are.
    ///
    /// # Errors
    /// When the upstream is not found, or is public.
    pub async fn redirect(&self, name: &str, upstream: String) -> Result<(), Error> {
        resolve(&upstream).await?;
        self.route(name)?.upstream.send_replace(upstream);
        Ok(())
    }

    /// Lets nothing arrive any more of what the open connections of a route send, and keeps them open, as a network that drops
    /// packets, or a server that has failed over. New connections work.
    pub fn silence_open(&self, name: &str) -> Result<(), Error> {
        self.route(name)?.silenced.send_replace(());
        Ok(())
    }

    /// Lets a route have this fault and no other. Bytes that are sent after the return, and connections that are opened after
    /// it, meet the fault; open connections are reset by a cut a moment later.
    ///
    /// # Errors
    /// When the fault is invalid.
    pub fn set(&self, name: &str, fault: Fault) -> Result<(), Error> {
        let route = self.route(name)?;
        fault.check().map_err(Error::InvalidFault)?;
        tracing::info!(name, ?fault, "fault set");
        route.fault.send_replace(Some(Arc::new(Active::new(fault))));
        Ok(())
    }

    /// Ends the fault of a route.
    pub fn clear(&self, name: &str) -> Result<(), Error> {
        self.route(name)?.fault.send_replace(None);
        Ok(())
    }

    /// What each route has done since the start.
    pub fn stats(&self) -> BTreeMap<String, Stats> {
        self.routes.iter().map(|(name, state)| (name.clone(), *state.stats.borrow())).collect()
    }

    fn route(&self, name: &str) -> Result<&Arc<RouteState>, Error> {
        self.routes.get(name).ok_or_else(|| Error::UnknownRoute(name.to_owned()))
    }
}

/// Accepts the connections of one route. Dropping it ends all of them.
async fn accept(listener: TcpListener, route: Arc<RouteState>) {
    let mut connections = JoinSet::new();
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(cause) => {
                tracing::warn!(route = route.route.name, "failed to accept a connection: {cause}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while let Some(ended) = connections.try_join_next() {
            if let Err(cause) = ended {
                tracing::error!(route = route.route.name, "failed to carry a connection: {cause}");
            }
        }
        let is_cut = route.in_force().is_some_and(|active| active.fault.effect == Effect::Cut);
        if is_cut || connections.len() >= MAX_CONNECTIONS {
            connection::reset(client);
            route.stats.send_modify(|stats| stats.refused += 1);
        } else {
            connections.spawn(connection::carry(client, route.silenced.subscribe(), route.clone()));
        }
    }
}

/// Resolves an upstream and checks that all its addresses are loopback or private: the proxy must never become a relay to a
/// public network. The caller connects to the returned addresses, because a second look-up could return others.
async fn resolve(upstream: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = match timeout(RESOLVE_DEADLINE, lookup_host(upstream)).await {
        Ok(found) => found.map(Vec::from_iter),
        Err(late) => Err(late.into()),
    };
    let addresses = found.map_err(|cause| Error::UnresolvedUpstream(upstream.to_owned(), cause))?;
    match addresses.iter().find(|address| !is_local(address.ip().to_canonical())) {
        Some(&address) => Err(Error::RefusedUpstream(upstream.to_owned(), address)),
        None => Ok(addresses),
    }
}

/// Link-local is left out: cloud providers serve credentials at 169.254.169.254.
fn is_local(ip: IpAddr) -> bool {
    let is_private = match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    };
    ip.is_loopback() || is_private
}
