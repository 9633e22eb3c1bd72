//! A payment provider that is called without a stable idempotency key.

use billing::{PaymentProvider, ProviderResponse};
use events::Money;
use flaws::Flaw;
use uuid::Uuid;

/// The product's provider; with the flaw, each call has another key, so no repetition is recognized.
#[derive(Clone)]
pub struct FlawedProvider<P> {
    inner: P,
    keyless: bool,
}

impl<P: PaymentProvider> FlawedProvider<P> {
    pub fn new(inner: P, flaw: Option<Flaw>) -> Self {
        Self { inner, keyless: flaw == Some(Flaw::ChargeWithoutKey) }
    }

    fn key(&self, key: Uuid) -> Uuid {
        if self.keyless { Uuid::new_v4() } else { key }
    }
}

impl<P: PaymentProvider> PaymentProvider for FlawedProvider<P> {
    async fn charge(&self, key: Uuid, order: Uuid, customer: Uuid, amount: &Money) -> ProviderResponse {
        self.inner.charge(self.key(key), order, customer, amount).await
    }

    async fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> ProviderResponse {
        self.inner.refund(self.key(key), charge, amount).await
    }
}
