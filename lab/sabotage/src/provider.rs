//! A payment provider that is called without a stable idempotency key.

use billing::{PaymentProvider, ProviderResponse};
use events::Money;
use uuid::Uuid;

use crate::Sabotage;

/// The product's provider; with the sabotage, each call has a key of its own, so no repetition is recognised.
#[derive(Clone)]
pub struct LabProvider<P> {
    inner: P,
    keyless: bool,
}

impl<P: PaymentProvider> LabProvider<P> {
    pub fn new(inner: P, sabotage: Option<Sabotage>) -> Self {
        Self { inner, keyless: sabotage == Some(Sabotage::ChargeWithoutKey) }
    }

    fn key(&self, key: Uuid) -> Uuid {
        if self.keyless { Uuid::new_v4() } else { key }
    }
}

impl<P: PaymentProvider> PaymentProvider for LabProvider<P> {
    async fn charge(&self, key: Uuid, order: Uuid, customer: Uuid, amount: &Money) -> ProviderResponse {
        self.inner.charge(self.key(key), order, customer, amount).await
    }

    async fn refund(&self, key: Uuid, charge: Uuid, amount: i64) -> ProviderResponse {
        self.inner.refund(self.key(key), charge, amount).await
    }
}
