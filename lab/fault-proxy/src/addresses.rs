//! The addresses that the proxy accepts. It must never become a relay to or from a public network.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::lookup_host, time::timeout};

use crate::{Error, Route};

const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// Checks that a route listens on loopback, or on an internal address where the route permits that.
pub(crate) fn check_listen(route: &Route) -> Result<(), Error> {
    let ip = route.listen.ip().to_canonical();
    let cause = if ip.is_loopback() || (route.container_network && is_internal(ip)) {
        return Ok(());
    } else if is_internal(ip) {
        "an address outside loopback needs the option for container networks"
    } else {
        "it is a public address"
    };
    Err(Error::RefusedListenAddress { address: route.listen, cause })
}

/// Resolves an upstream and checks that all its addresses are loopback or private.
///
/// The caller connects to the returned addresses. A second look-up could return others, which nothing has checked.
pub(crate) async fn resolve(upstream: &str) -> Result<Vec<SocketAddr>, Error> {
    let unresolved = |cause| Error::UnresolvedUpstream { upstream: upstream.to_owned(), cause };
    let addresses: Vec<_> = match timeout(RESOLVE_DEADLINE, lookup_host(upstream)).await {
        Ok(found) => found.map_err(unresolved)?.collect(),
        Err(late) => return Err(unresolved(late.into())),
    };
    if addresses.is_empty() {
        return Err(unresolved(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    match addresses.iter().find(|address| !is_upstream(address.ip().to_canonical())) {
        Some(&address) => Err(Error::RefusedUpstream { upstream: upstream.to_owned(), address }),
        None => Ok(addresses),
    }
}

fn is_internal(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    is_private(ip) || is_link_local || ip.is_unspecified()
}

/// Link-local is left out: cloud providers serve credentials at 169.254.169.254.
fn is_upstream(ip: IpAddr) -> bool {
    ip.is_loopback() || is_private(ip)
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private(),
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(address: &str, container_network: bool) -> bool {
        let listen = address.parse().unwrap();
        check_listen(&Route { listen, container_network, ..Route::new("route", "") }).is_ok()
    }

    #[test]
    fn loopback_needs_no_option() {
        for address in ["127.0.0.1:0", "127.8.9.10:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            assert!(listen(address, false), "{address}");
        }
    }

    #[test]
    fn internal_listen_addresses_need_the_option() {
        let internal = ["10.0.0.1:0", "172.16.0.1:0", "172.31.255.255:0", "192.168.1.1:0", "169.254.1.1:0"];
        for address in internal.into_iter().chain(["0.0.0.0:0", "[::]:0", "[fd00::1]:0", "[fe80::1]:0"]) {
            assert!(!listen(address, false), "{address}");
            assert!(listen(address, true), "{address}");
        }
    }

    #[test]
    fn public_listen_addresses_are_refused_even_with_the_option() {
        let public = ["8.8.8.8:0", "172.32.0.1:0", "100.64.0.1:0", "[2001:4860::1]:0", "[::ffff:8.8.8.8]:0"];
        for address in public {
            assert!(!listen(address, true), "{address}");
        }
    }

    #[tokio::test]
    async fn upstreams_are_loopback_or_private() {
        for upstream in ["127.0.0.1:1", "[::1]:1", "10.1.2.3:1", "172.20.0.2:1", "[fd00::1]:1", "localhost:1"]
        {
            assert!(resolve(upstream).await.is_ok(), "{upstream}");
        }
        for upstream in ["8.8.8.8:1", "169.254.169.254:1", "0.0.0.0:1", "[2001:4860::1]:1", "[fe80::1]:1"] {
            assert!(matches!(resolve(upstream).await, Err(Error::RefusedUpstream { .. })), "{upstream}");
        }
    }

    #[tokio::test]
    async fn an_upstream_without_a_port_is_refused() {
        assert!(matches!(resolve("127.0.0.1").await, Err(Error::UnresolvedUpstream { .. })));
    }
}
