//! What clients do.

pub(super) mod hang_up;
pub(super) mod same_key;
pub(super) mod slow;
