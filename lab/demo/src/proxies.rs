//! The fault proxy between the services and their servers: in this process, or in the lab's container network.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use fault_proxy::{Fault, Proxy, Stats};

use crate::http;

/// A proxy with a route for each service and server: `orders-database`, `orders-broker`, …
#[derive(Debug)]
pub(crate) enum Proxies {
    /// In this process.
    Here(Proxy),
    /// In another container; the URL of its control API.
    Remote(String),
}

impl Proxies {
    /// Lets a route have this fault and no other.
    pub(crate) async fn set(&self, route: &str, fault: Fault) -> Result<()> {
        match self {
            Self::Here(proxy) => Ok(proxy.set(route, fault)?),
            Self::Remote(url) => {
                let request = http::client()?.put(format!("{url}/routes/{route}")).json(&fault);
                let answer = request.send().await.context("failed to reach the proxy's control API")?;
                let status = answer.status();
                ensure!(status == 204, "the proxy answered {status}: {}", answer.text().await?);
                Ok(())
            }
        }
    }

    /// Ends the fault of a route.
    pub(crate) async fn clear(&self, route: &str) -> Result<()> {
        match self {
            Self::Here(proxy) => Ok(proxy.clear(route)?),
            Self::Remote(url) => {
                let request = http::client()?.delete(format!("{url}/routes/{route}"));
                request.send().await?.error_for_status()?;
                Ok(())
            }
        }
    }

    /// Ends the faults of all routes.
    pub(crate) async fn clear_all(&self) -> Result<()> {
        for route in self.all_stats().await?.keys() {
            self.clear(route).await?;
        }
        Ok(())
    }

    /// What a route has carried since the proxy was started.
    pub(crate) async fn stats(&self, route: &str) -> Result<Stats> {
        let stats = self.all_stats().await?;
        stats.get(route).copied().context("the proxy has no such route")
    }

    async fn all_stats(&self) -> Result<BTreeMap<String, Stats>> {
        match self {
            Self::Here(proxy) => Ok(proxy.stats()),
            Self::Remote(url) => Ok(serde_json::from_str(&http::get(&format!("{url}/routes")).await?)?),
        }
    }
}
