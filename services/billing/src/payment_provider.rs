use std::time::Duration;

use anyhow::Context as _;
use events::Money;
use reqwest::{Client, StatusCode, Url};
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
        meaning(status, &String::from_utf8_lossy(&answer), body)
    }
}

/// What an answer of the provider says. Every status that is not named leaves it open whether the provider has done it: also a
/// 4xx, which says that nothing was done, because repeating the call is safe and believing that is not. A repeated call may be
/// answered with another 2xx than the first one; 202 alone says that it is not done yet.
fn meaning(status: StatusCode, text: &str, call: &Value) -> ProviderResponse {
    match status {
        StatusCode::PAYMENT_REQUIRED => ProviderResponse::Declined(detail(text)),
        done if done.is_success() && done != StatusCode::ACCEPTED => match id_of(text, call) {
            Ok(id) => ProviderResponse::Done(id),
            Err(problem) => ProviderResponse::Unknown(storable(&format!("{done}, {problem}"), 300)),
        },
        other => ProviderResponse::Unknown(format!("{other}: {}", detail(text))),
    }
}

/// The id of the charge or refund. What the answer repeats of the call must be equal: else it is about another one.
fn id_of(text: &str, call: &Value) -> Result<Uuid, String> {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    for (name, said) in call.as_object().into_iter().flatten() {
        let same = |answered: &Value| match (answered.as_str(), said.as_str()) {
            (Some(answered), Some(said)) => answered.eq_ignore_ascii_case(said),
            _ => answered == said,
        };
        if let Some(answered) = answer.get(name).filter(|answered| !same(answered)) {
            return Err(format!("and {name} is {answered}, not {said}"));
        }
    }
    answer["id"].as_str().and_then(|id| id.parse().ok()).ok_or_else(|| "and no id".to_owned())
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
        let (problem, id) = (r#"{"title": "Gone"}"#, Uuid::now_v7());
        let done = json!({ "id": id }).to_string();
        for status in 100..1000 {
            let of = |text| meaning(StatusCode::from_u16(status).unwrap(), text, &Value::Null);
            let is_done = (200..300).contains(&status) && status != 202;
            assert_eq!(of(&done) == ProviderResponse::Done(id), is_done, "{status}");
            let without_id = if status == 402 { "declined" } else { "unknown" };
            assert_eq!(of(problem).name(), without_id, "{status}");
        }
    }

    #[test]
    fn answer_about_another_charge_is_an_unknown_outcome() {
        let (id, order) = (Uuid::now_v7(), Uuid::now_v7());
        let call = json!({ "reference": order, "customerId": id, "amount": 625, "currency": "EUR" });
        let of = |answer: Value| meaning(StatusCode::CREATED, &answer.to_string(), &call);
        let reference = order.to_string().to_uppercase();
        for answer in [
            json!({ "id": id, "reference": reference, "amount": 625, "currency": "eur" }),
            json!({ "id": id, "amount": 625 }),
        ] {
            assert_eq!(of(answer), ProviderResponse::Done(id));
        }
        for answer in [
            json!({ "id": id, "reference": id, "amount": 625 }),
            json!({ "id": id, "reference": order, "amount": 1 }),
            json!({ "id": id, "reference": order, "amount": "625" }),
        ] {
            assert_eq!(of(answer.clone()).name(), "unknown", "{answer}");
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
