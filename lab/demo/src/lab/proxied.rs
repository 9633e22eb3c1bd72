//! Fault proxies before servers.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use fault_proxy::{Proxy, Route};
use reqwest::Url;

/// The name of the one route of [`proxied`].
pub const PROXY_ROUTE: &str = "server";

/// Starts a proxy before the server of a URL, and returns it with the URL that leads through it.
pub async fn proxied(url: &str) -> Result<(Proxy, String)> {
    let proxy = Proxy::start(vec![route(PROXY_ROUTE, url)?]).await?;
    let through = through(url, proxy.address(PROXY_ROUTE)?)?;
    Ok((proxy, through))
}

/// A route to the server of a URL.
pub(crate) fn route(name: &str, url: &str) -> Result<Route> {
    let url: Url = url.parse()?;
    let upstream = format!("{}:{}", url.host_str().context("no host")?, url.port().context("no port")?);
    Ok(Route::new(name, upstream))
}

/// The same URL at another address.
pub(crate) fn through(url: &str, address: SocketAddr) -> Result<String> {
    let mut url: Url = url.parse()?;
    url.set_host(Some(&address.ip().to_string()))?;
    url.set_port(Some(address.port())).ok().context("the URL cannot have a port")?;
    Ok(url.into())
}
