use std::{
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
};

use crate::Error;

/// How many connections a route carries at a time unless it says otherwise.
///
/// The number bounds memory: each connection buffers about 1 MiB at most.
pub const DEFAULT_MAX_CONNECTIONS: usize = 256;

const MAX_NAME_LENGTH: usize = 64;

/// One listen address and the upstream that its connections go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Letters, digits, `-`, `_` and `.`: the name is a segment of a path in the control API.
    pub name: String,
    /// Port 0 takes a free port; [`Proxy::address`](crate::Proxy::address) returns it.
    pub listen: SocketAddr,
    /// Host and port. A host name is resolved again for each connection, since a restarted container may move.
    pub upstream: String,
    /// Further connections are reset at once and counted as refused.
    pub max_connections: usize,
    /// Permits a private, link-local, unique-local or unspecified listen address.
    pub container_network: bool,
}

impl Route {
    /// A route that listens on a free loopback port.
    pub fn new(name: impl Into<String>, upstream: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            upstream: upstream.into(),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            container_network: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        // A URL parser would remove `.` and `..` from the path, and the control API could not reach the route.
        let is_dots = matches!(self.name.as_str(), "." | "..");
        let cause = if !(1..=MAX_NAME_LENGTH).contains(&self.name.len()) {
            "a name has 1 to 64 characters"
        } else if is_dots || !self.name.bytes().all(permitted) {
            "a name has only letters, digits, '-', '_' and '.'"
        } else if self.max_connections == 0 {
            "max_connections is at least 1"
        } else {
            return Ok(());
        };
        Err(Error::InvalidRoute { route: self.name.clone(), cause })
    }
}

/// Reads `name=listen,upstream`, where `listen` is an address with a port, or a port on loopback.
impl FromStr for Route {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |cause| Error::InvalidRoute { route: text.to_owned(), cause };
        let (name, addresses) = text.split_once('=').ok_or(invalid("expected name=listen,upstream"))?;
        let (listen, upstream) = addresses.split_once(',').ok_or(invalid("expected name=listen,upstream"))?;
        let listen = match listen.parse::<u16>() {
            Ok(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Err(_) => {
                listen.parse().map_err(|_| invalid("the listen address is an IP address and a port"))?
            }
        };
        let route = Self { listen, ..Self::new(name, upstream) };
        route.check()?;
        Ok(route)
    }
}
