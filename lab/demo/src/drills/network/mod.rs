//! What happens between the services and their servers. A proxy of the lab carries each connection.

pub(super) mod resets;
pub(super) mod silence;
pub(super) mod slow;
