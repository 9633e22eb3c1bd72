//! The nodes of a broker: named in one URL, and tried in turn. lapin connects to one address.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use lapin::uri::AMQPUri;

use crate::Error;

const SCHEME: &str = "amqp://";

/// The nodes of a broker. Each clone begins at a random one, so that the connections of all processes are spread, and takes
/// the next one for each attempt. So a node that is down, cut off or without a majority costs one attempt.
pub(crate) struct Nodes {
    uris: Arc<[AMQPUri]>,
    /// The index of the node that was tried last.
    last: AtomicUsize,
}

impl Nodes {
    /// Parses `amqp://user:password@host:port,host:port/vhost`. The nodes of a cluster share users and virtual hosts.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let Some(rest) = url.strip_prefix(SCHEME) else {
            return Err(Error::Url("it must begin with amqp://: this build has no TLS"));
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (login, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
        let uris: Result<Vec<_>, _> =
            hosts.split(',').map(|host| node(&format!("{SCHEME}{login}{host}{path}"), host)).collect();
        Ok(Self::starting_anywhere(uris?.into()))
    }

    fn starting_anywhere(uris: Arc<[AMQPUri]>) -> Self {
        Self { last: AtomicUsize::new(fastrand::usize(..uris.len())), uris }
    }

    pub(crate) fn count(&self) -> usize {
        self.uris.len()
    }

    /// The node for the next attempt.
    pub(crate) fn next(&self) -> &AMQPUri {
        self.last.fetch_add(1, Ordering::Relaxed);
        self.last()
    }

    fn last(&self) -> &AMQPUri {
        &self.uris[self.last.load(Ordering::Relaxed) % self.uris.len()]
    }

    /// The host and the port of the node that was tried last.
    pub(crate) fn address(&self) -> String {
        let authority = &self.last().authority;
        format!("{}:{}", authority.host, authority.port)
    }
}

impl Clone for Nodes {
    fn clone(&self) -> Self {
        Self::starting_anywhere(self.uris.clone())
    }
}

/// Parses the URL of one node. `host` is how it names the node.
fn node(url: &str, host: &str) -> Result<AMQPUri, Error> {
    // The parser's error quotes the URL, and the URL holds the password.
    let form = "it looks like amqp://user:password@host:5672/vhost, with special characters percent-encoded and a comma between hosts";
    let uri: AMQPUri = url.parse().map_err(|_: String| Error::Url(form))?;
    // The parser takes what it does not understand, for example an IPv6 address or no host, for `localhost`.
    if host.is_empty() || !host.starts_with(uri.authority.host.as_str()) {
        return Err(Error::Url("each of its hosts must be one name or IPv4 address"));
    }
    if uri.vhost.is_empty() {
        return Err(Error::Url("it ends in a slash, which names a virtual host without a name"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_attempt_takes_the_next_node_and_clones_begin_at_different_ones() {
        let nodes = Nodes::parse("amqp://shop:p%40ss@one,two:5673,three/shop").unwrap();
        let attempt = || {
            let uri = nodes.next();
            assert_eq!((uri.authority.userinfo.password.as_str(), uri.vhost.as_str()), ("p@ss", "shop"));
            nodes.address()
        };
        let round = BTreeSet::from([attempt(), attempt(), attempt()]);
        assert_eq!(round, ["one:5672", "three:5672", "two:5673"].map(String::from).into());
        let first = attempt();
        assert_eq!([attempt(), attempt(), attempt()][2], first);
        let begins: BTreeSet<_> = (0..1000).map(|_| nodes.clone().address()).collect();
        assert_eq!(begins, round);
    }
}
