//! What happens to PostgreSQL.

pub(super) mod commit_contention;
pub(super) mod freeze;
pub(super) mod kill;
pub(super) mod locks;
pub(super) mod sessions;
pub(super) mod writes;
