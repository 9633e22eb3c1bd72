//! HTTP requests to the services.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// A replay of many events takes longer than other requests. The services answer within 30 s.
const ADMIN_DEADLINE: Duration = Duration::from_secs(40);

pub(crate) fn client() -> Result<reqwest::Client> {
    // Everything is on this machine: a configured HTTP proxy could only get in the way.
    Ok(reqwest::Client::builder().no_proxy().timeout(REQUEST_DEADLINE).build()?)
}

/// Reads the body of a page. Any status but success is an error.
pub(crate) async fn get(url: &str) -> Result<String> {
    let response = client()?.get(url).send().await.with_context(|| format!("failed to read {url}"))?;
    let (status, body) = (response.status(), response.text().await?);
    if !status.is_success() {
        bail!("{url} answered {status}: {body}");
    }
    Ok(body)
}

/// Sends a request to a service's admin API, and returns the status and the body of the answer. With a body it is a
/// POST.
pub(crate) async fn admin_request(url: &str, token: &str, body: Option<&str>) -> Result<(u16, String)> {
    let request = match body {
        None => client()?.get(url),
        Some(body) => client()?.post(url).header("content-type", "application/json").body(body.to_owned()),
    };
    let request = request.bearer_auth(token).header("x-operator", "demo").timeout(ADMIN_DEADLINE);
    let response = request.send().await.with_context(|| format!("failed to request {url}"))?;
    Ok((response.status().as_u16(), response.text().await?))
}
