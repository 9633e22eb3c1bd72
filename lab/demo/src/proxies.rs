//! The fault proxy between the services and their servers: in this process, or in the lab's container network.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fault_proxy::{Direction, Effect, Fault, Proxy, Stats};
use serde_json::{Value, json};

use crate::http;

/// Longer than any drill injects a fault. The proxy needs an end.
const LONGEST_FAULT: Duration = Duration::from_secs(600);

/// A proxy with a route for each service and server: `orders-database`, `orders-broker`, …
#[derive(Debug)]
pub(crate) enum Proxies {
    /// In this process.
    Here(Proxy),
    /// In another container; the URL of its control API.
    Remote(String),
}

impl Proxies {
    /// Lets a route have this fault and no other, until it is cleared or the drill has ended.
    pub(crate) async fn set(&self, route: &str, effect: Effect, direction: Direction) -> Result<()> {
        self.replace(route, Fault::new(effect, direction, LONGEST_FAULT)).await
    }

    /// Lets a route have this fault and no other.
    pub(crate) async fn replace(&self, route: &str, fault: Fault) -> Result<()> {
        match self {
            Self::Here(proxy) => Ok(proxy.replace(route, vec![fault]).await?),
            Self::Remote(url) => {
                let request =
                    http::client()?.put(format!("{url}/routes/{route}/faults")).json(&[json_of(&fault)?]);
                let answer = request.send().await.context("failed to reach the proxy's control API")?;
                let status = answer.status();
                ensure!(status == 200, "the proxy answered {status}: {}", answer.text().await?);
                Ok(())
            }
        }
    }

    /// Ends the faults of a route.
    pub(crate) async fn clear(&self, route: &str) -> Result<()> {
        match self {
            Self::Here(proxy) => Ok(proxy.clear(route).await?),
            Self::Remote(url) => {
                let request = http::client()?.delete(format!("{url}/routes/{route}/faults"));
                request.send().await?.error_for_status()?;
                Ok(())
            }
        }
    }

    /// Ends all faults of all routes.
    pub(crate) async fn clear_all(&self) -> Result<()> {
        for route in self.routes().await? {
            self.clear(&route).await?;
        }
        Ok(())
    }

    /// What a route has carried since the proxy was started.
    pub(crate) async fn stats(&self, route: &str) -> Result<Stats> {
        match self {
            Self::Here(proxy) => Ok(proxy.stats(route)?),
            Self::Remote(url) => {
                let routes = read_routes(url).await?;
                let found = routes.iter().find(|shown| shown["name"] == route);
                Ok(serde_json::from_value(found.context("the proxy has no such route")?["stats"].clone())?)
            }
        }
    }

    async fn routes(&self) -> Result<Vec<String>> {
        match self {
            Self::Here(proxy) => Ok(proxy.addresses().into_keys().collect()),
            Self::Remote(url) => {
                let name = |route: &Value| route["name"].as_str().unwrap_or_default().to_owned();
                Ok(read_routes(url).await?.iter().map(name).collect())
            }
        }
    }
}

async fn read_routes(url: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&http::get(&format!("{url}/routes")).await?)?)
}

/// A fault as the control API accepts it.
fn json_of(fault: &Fault) -> Result<Value> {
    let mut body = match &fault.effect {
        Effect::Cut => json!({ "fault": "cut" }),
        Effect::ResetAfter { bytes } => json!({ "fault": "reset-after", "bytes": bytes }),
        Effect::ResetOnPattern { pattern, forward } => {
            let pattern = std::str::from_utf8(pattern).context("a pattern in JSON has to be text")?;
            json!({ "fault": "reset-on-pattern", "pattern": pattern, "forward": forward })
        }
        Effect::Delay(delay) => json!({ "fault": "delay", "delayMs": delay.as_millis() }),
        Effect::Trickle { bytes_per_second } => {
            json!({ "fault": "trickle", "bytesPerSecond": bytes_per_second })
        }
        Effect::BlackHole => json!({ "fault": "black-hole" }),
    };
    body["direction"] = serde_json::to_value(fault.direction)?;
    body["lastsMs"] = json!(fault.lasts.as_millis());
    if let Some(times) = fault.times {
        body["times"] = json!(times);
    }
    Ok(body)
}
