//! Relays as they are often written, in the place of the product's.

pub(crate) mod listen_alone;
pub(crate) mod poll_one_by_one;
pub(crate) mod trigger;
