use std::time::Duration;

use anyhow::Context as _;
use events::Money;
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

/// The payment provider, as the worker calls it.
pub trait PaymentProvider: Clone + Send + Sync + 'static {
    /// Charges a customer for an order, once for each `key`.
    fn charge(
        &self,
        key: Uuid,
        order: Uuid,
        customer: Uuid,
        amount: &Money,
    ) -> impl Future<Output = ProviderResponse> + Send;

    /// Refunds all of a charge, once for each `key`. `amount` is in minor units.
    fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> impl Future<Output = ProviderResponse> + Send;
}

/// The payment provider over HTTP.
#[derive(Debug, Clone)]
pub struct HttpPaymentProvider {
    client: Client,
    url: Url,
}

/// The outcome of a charge or a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderResponse {
    /// It is done, under this id: now, or at an earlier call with the same key.
    Done(Uuid),
    /// It is not done and will not be, for this reason.
    Declined(String),
    /// It may or may not be done. Only a repeated call with the same key is safe.
    Unknown(String),
}

impl ProviderResponse {
    /// A short, stable name for logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Declined(_) => "declined",
            Self::Unknown(_) => "unknown",
        }
    }
}

#[derive(Deserialize)]
struct Done {
    id: Uuid,
}

/// An answer is an id, or a problem of some hundred bytes. 64 of them are read at a time.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

impl HttpPaymentProvider {
    /// `deadline` bounds each call, from the connection to the last byte of the answer.
    pub fn new(url: Url, deadline: Duration) -> anyhow::Result<Self> {
        // A redirect would send a charge to another host, and so would a proxy that the environment names for other programs.
        let client =
            Client::builder().timeout(deadline).redirect(reqwest::redirect::Policy::none()).no_proxy();
        Ok(Self { client: client.build().context("failed to create an HTTP client")?, url })
    }

    async fn call(&self, path: &str, key: Uuid, body: &Value) -> ProviderResponse {
        let Ok(url) = self.url.join(path) else {
            return ProviderResponse::Unknown(format!("there is no {path} under {}", self.url));
        };
        let request = self.client.post(url).json(body).header("idempotency-key", format!("\"{key}\""));
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return unknown(error),
        };
        let status = response.status();
        let mut answer = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if answer.len() + chunk.len() > MAX_ANSWER_BYTES => {
                    return ProviderResponse::Unknown(format!("{status}, and an answer that is too long"));
                }
                Ok(Some(chunk)) => answer.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return unknown(error),
            }
        }
        meaning(status, &String::from_utf8_lossy(&answer))
    }
}

/// What an answer of the provider says. Every status that is not named leaves it open whether the provider has done it: also a
/// 4xx, which says that nothing was done, because repeating the call is safe and believing that is not.
fn meaning(status: StatusCode, text: &str) -> ProviderResponse {
    match status {
        StatusCode::CREATED => match serde_json::from_str::<Done>(text) {
            Ok(done) => ProviderResponse::Done(done.id),
            Err(error) => ProviderResponse::Unknown(format!("201, and no id: {error}")),
        },
        StatusCode::PAYMENT_REQUIRED => ProviderResponse::Declined(detail(text)),
        other => ProviderResponse::Unknown(format!("{other}: {}", detail(text))),
    }
}

impl PaymentProvider for HttpPaymentProvider {
    async fn charge(&self, key: Uuid, order: Uuid, customer: Uuid, amount: &Money) -> ProviderResponse {
        let Money { amount, currency } = amount;
        let body =
            json!({ "reference": order, "customerId": customer, "amount": amount, "currency": currency });
        self.call("charges", key, &body).await
    }

    async fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> ProviderResponse {
        self.call("refunds", key, &json!({ "charge": charge, "amount": amount })).await
    }
}

/// The detail of an RFC 9457 problem, or else the text of the answer.
fn detail(text: &str) -> String {
    let problem: Value = serde_json::from_str(text).unwrap_or_default();
    let sentence = problem["detail"].as_str().or(problem["title"].as_str()).unwrap_or(text);
    storable(sentence, 200)
}

/// An error with its causes: reqwest's own text omits them.
fn unknown(error: reqwest::Error) -> ProviderResponse {
    ProviderResponse::Unknown(storable(&format!("{:#}", anyhow::Error::new(error)), 300))
}

/// Text that PostgreSQL accepts: an answer from outside may hold a NUL.
fn storable(text: &str, longest: usize) -> String {
    text.chars().filter(|letter| *letter != '\0').take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_and_a_refusal_are_final_answers() {
        let problem = r#"{"title": "Gone"}"#;
        let id = Uuid::now_v7();
        let done = meaning(StatusCode::CREATED, &json!({ "id": id }).to_string());
        assert!(matches!(done, ProviderResponse::Done(charge) if charge == id));
        assert_eq!(meaning(StatusCode::PAYMENT_REQUIRED, problem).name(), "declined");
        assert_eq!(meaning(StatusCode::CREATED, problem).name(), "unknown");
        for status in (100..1000).filter(|status| ![201, 402].contains(status)) {
            let answer = meaning(StatusCode::from_u16(status).unwrap(), problem);
            assert_eq!(answer.name(), "unknown", "{status}");
        }
    }

    #[test]
    fn every_answer_of_a_provider_can_be_stored() {
        let answer = format!(r#"{{"detail": "no\u0000way{}"}}"#, "é".repeat(1000));
        let kept = detail(&answer);
        assert!(kept.starts_with("noway") && kept.chars().count() == 200, "{kept}");
        assert_eq!(detail("\0plain\0"), "plain");
        assert_eq!(detail(r#"{"title": "Gone"}"#), "Gone");
    }
}
