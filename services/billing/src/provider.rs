//! The payment provider, as its customers see it: HTTP, and answers that may not come.

use std::time::Duration;

use anyhow::Context as _;
use faults::Sabotage;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

/// Where it is, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct Provider {
    client: Client,
    url: Url,
}

/// What came of asking for a charge or a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done, under this id: now, or at an earlier try with the same key.
    Done(Uuid),
    /// It is not done, and will not be.
    Declined(String),
    /// Nobody knows. It may have been done. Only asking again with the same key is safe.
    Unknown(String),
}

#[derive(Deserialize)]
struct Done {
    id: Uuid,
}

impl Provider {
    /// Connects to nothing yet. `deadline` bounds each call, from the connection to the last byte of the answer.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(url: Url, deadline: Duration) -> anyhow::Result<Self> {
        // Redirects would carry a charge to somebody else.
        let client = Client::builder().timeout(deadline).redirect(reqwest::redirect::Policy::none());
        Ok(Self { client: client.build().context("cannot make an HTTP client")?, url })
    }

    /// Charges a customer for an order, once for each `key`.
    pub async fn charge(
        &self,
        key: Uuid,
        order: Uuid,
        customer: Uuid,
        amount: i64,
        currency: &str,
    ) -> Answer {
        let body =
            json!({ "reference": order, "customerId": customer, "amount": amount, "currency": currency });
        self.ask("charges", key, &body).await
    }

    /// Gives all of a charge back, once for each `key`.
    pub async fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> Answer {
        self.ask("refunds", key, &json!({ "charge": charge, "amount": amount })).await
    }

    async fn ask(&self, what: &str, key: Uuid, body: &Value) -> Answer {
        let Ok(url) = self.url.join(what) else {
            return Answer::Unknown(format!("there is no {what} under {}", self.url));
        };
        let request = self.client.post(url).json(body);
        let keyed = |request: RequestBuilder| request.header("idempotency-key", format!("\"{key}\""));
        let request = if faults::sabotaged(Sabotage::ChargeWithoutKey) { request } else { keyed(request) };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Answer::Unknown(chain(&error)),
        };
        let status = response.status();
        let text = match response.text().await {
            Ok(text) => text,
            Err(error) => return Answer::Unknown(chain(&error)),
        };
        match status {
            StatusCode::CREATED => match serde_json::from_str::<Done>(&text) {
                Ok(done) => Answer::Done(done.id),
                Err(error) => Answer::Unknown(format!("201, and no id: {error}")),
            },
            StatusCode::PAYMENT_REQUIRED => Answer::Declined(detail(&text)),
            // Also what it calls our mistake. Nothing was done then, but nothing is gained by believing that.
            other => Answer::Unknown(format!("{other}: {}", detail(&text))),
        }
    }
}

/// The sentence in a problem of RFC 9457, or what there is of the answer.
fn detail(text: &str) -> String {
    let problem: Value = serde_json::from_str(text).unwrap_or_default();
    let sentence = problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or(text);
    storable(sentence, 200)
}

/// An error with its causes: reqwest's own text leaves out what matters.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    storable(&text, 300)
}

/// What PostgreSQL takes for a text: a stranger's answer may hold a NUL.
fn storable(text: &str, longest: usize) -> String {
    text.chars().filter(|letter| *letter != '\0').take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_provider_answers_can_be_written_down() {
        let answer = format!(r#"{{"detail": "no\u0000way{}"}}"#, "é".repeat(1000));
        let kept = detail(&answer);
        assert!(kept.starts_with("noway") && kept.chars().count() == 200, "{kept}");
        assert_eq!(detail("\0plain\0"), "plain");
        assert_eq!(detail(r#"{"title": "Gone"}"#), "Gone");
    }
}
