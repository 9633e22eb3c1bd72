//! Clocks that are wrong, and limits that pass.

pub(super) mod clocks;
pub(super) mod limit;
