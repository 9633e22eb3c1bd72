/// Something else has to end first: a fault, a comparison or an order.
#[derive(Debug, thiserror::Error)]
#[error("one at a time: {0}")]
pub(crate) struct Busy(pub(crate) String);
