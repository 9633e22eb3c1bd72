//! A fault proxy before a server.

use anyhow::{Context as _, Result};
use fault_proxy::{Proxy, Route};
use reqwest::Url;

/// The name of the proxy's one route.
pub const PROXY_ROUTE: &str = "server";

/// Starts a proxy before the server of a URL, and returns it with the URL that leads through it.
pub async fn proxied(url: &str) -> Result<(Proxy, String)> {
    let mut url: Url = url.parse()?;
    let upstream = format!("{}:{}", url.host_str().context("no host")?, url.port().context("no port")?);
    let proxy = Proxy::start(vec![Route::new(PROXY_ROUTE, upstream)]).await?;
    let address = proxy.address(PROXY_ROUTE)?;
    url.set_host(Some(&address.ip().to_string()))?;
    url.set_port(Some(address.port())).ok().context("the URL cannot have a port")?;
    Ok((proxy, url.into()))
}
