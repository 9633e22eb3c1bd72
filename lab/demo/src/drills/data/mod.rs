//! Messages that should not exist, copies, and what was set aside.

pub(super) mod copies;
pub(super) mod poison;
pub(super) mod replay;
