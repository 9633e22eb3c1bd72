use std::{io, net::SocketAddr, time::Duration};

use crate::Stats;

/// What the proxy refuses to do, or fails to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("failed to read route {route:?}: {cause}")]
    InvalidRoute { route: String, cause: &'static str },

    #[error("failed to accept listen address {address}: {cause}")]
    RefusedListenAddress { address: SocketAddr, cause: &'static str },

    #[error("failed to accept upstream {upstream}: {address} is neither a loopback nor a private address")]
    RefusedUpstream { upstream: String, address: SocketAddr },

    #[error("failed to resolve upstream {upstream}: {cause}")]
    UnresolvedUpstream { upstream: String, cause: io::Error },

    #[error("failed to listen on {address}: {cause}")]
    Listen { address: SocketAddr, cause: io::Error },

    #[error("failed to find route {0:?}: no route has this name")]
    UnknownRoute(String),

    #[error("failed to inject a fault: {0}")]
    InvalidFault(String),

    /// The condition of [`Proxy::until`](crate::Proxy::until) did not become true.
    #[error(
        "failed to see the condition on route {route:?} within {deadline:?}: the last stats are {stats:?}"
    )]
    DeadlinePassed { route: String, deadline: Duration, stats: Stats },
}
