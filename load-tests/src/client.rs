//! The HTTP client of both kinds of load.

use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::CONTENT_TYPE;

use crate::{REQUEST_DEADLINE, summary::Answer};

/// Sends orders to one address. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    url: reqwest::Url,
}

impl Client {
    /// `url` is the order service's address, without a path.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(REQUEST_DEADLINE)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            // A connection from before a fault is not used again after it: it would hide that the service is back.
            .pool_idle_timeout(Duration::from_secs(5))
            .build()?;
        let orders = format!("{}/orders", url.trim_end_matches('/'));
        let url = reqwest::Url::parse(&orders).with_context(|| format!("failed to read the URL `{url}`"))?;
        Ok(Self { http, url })
    }

    /// Sends one order. The client's deadline covers the answer's body too.
    pub async fn place(&self, order: String) -> Answer {
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let answered = async {
            let response = request.body(order).send().await?;
            let status = response.status().as_u16();
            Ok::<_, reqwest::Error>((status, response.bytes().await?))
        };
        match answered.await {
            Ok((status, body)) => Answer::read(status, &body),
            Err(error) => Answer::Failed(reason(&error)),
        }
    }
}

/// Describes a failure. Equal failures have equal descriptions, so that they can be counted.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match error {
        _ if error.is_timeout() => format!("no answer within {} s", REQUEST_DEADLINE.as_secs()),
        _ if error.is_connect() => format!("failed to connect: {cause}"),
        _ => cause.to_string(),
    }
}
