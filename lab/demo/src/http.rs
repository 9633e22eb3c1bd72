//! HTTP requests to the services.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use testbed::eventually;
use tokio::time::sleep;
use uuid::Uuid;

const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// A replay of many events takes longer than other requests. The services answer within 30 s.
const ADMIN_DEADLINE: Duration = Duration::from_secs(40);

/// The pause before another attempt: clients that repeat what a busy service refuses at once keep it busy.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn client() -> Result<reqwest::Client> {
    // Everything is on this machine: a configured HTTP proxy could only get in the way.
    Ok(reqwest::Client::builder().no_proxy().timeout(REQUEST_DEADLINE).build()?)
}

/// A request that places an order.
pub(crate) fn order_request(orders_url: &str, order: &Value) -> Result<reqwest::RequestBuilder> {
    Ok(client()?.post(format!("{orders_url}/orders")).json(order))
}

/// An answer that is not the one that was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{what} was refused with {status}: {body}")]
pub(crate) struct Refused {
    what: &'static str,
    status: u16,
    body: String,
}

impl Refused {
    /// Whether the same request would be refused again, however busy the service is.
    pub(crate) fn is_final(&self) -> bool {
        (400..500).contains(&self.status) && ![408, 409, 425, 429].contains(&self.status)
    }
}

/// Tries again until an answer is accepted, as a client does: no single refusal decides. The error has the last one.
pub(crate) async fn retried<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    eventually(what, deadline, async || match attempt().await {
        Ok(answer) => Ok(Some(Ok(answer))),
        Err(error) if error.downcast_ref::<Refused>().is_some_and(Refused::is_final) => Ok(Some(Err(error))),
        Err(error) => {
            sleep(RETRY_PAUSE).await;
            Err(error)
        }
    })
    .await?
}

/// Passes a body on if its status is the expected one.
async fn expect(status: u16, what: &'static str, response: reqwest::Response) -> Result<String> {
    let (answered, body) = (response.status().as_u16(), response.text().await?);
    ensure!(answered == status, Refused { what, status: answered, body });
    Ok(body)
}

/// Cancels an order. Any answer but 200 is an error.
pub(crate) async fn cancel(orders_url: &str, id: Uuid, deadline: Duration) -> Result<()> {
    let request = client()?.post(format!("{orders_url}/orders/{id}/cancellation")).timeout(deadline);
    let response = request.send().await.context("failed to send a cancellation")?;
    expect(200, "the cancellation", response).await.map(drop)
}

/// Places an order, and returns the id that was acknowledged. Any answer but 201 is an error.
pub(crate) async fn place(request: reqwest::RequestBuilder) -> Result<Uuid> {
    #[derive(Deserialize)]
    struct Placed {
        id: Uuid,
    }
    let response = request.send().await.context("failed to send an order")?;
    let body = expect(201, "the order", response).await?;
    let Placed { id } = serde_json::from_str(&body).with_context(|| format!("201 without an id: {body}"))?;
    Ok(id)
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
