//! What happens to the services and to the payment provider.

pub(super) mod crashes;
pub(super) mod instances;
pub(super) mod logs;
pub(super) mod provider;
pub(super) mod saga;
pub(super) mod stops;
