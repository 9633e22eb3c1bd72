//! Something that was seen, or was not.

use serde::Serialize;

/// A condition that must be observed, for a drill to prove anything or for its claim to hold.
#[derive(Debug, Serialize)]
pub struct Fact {
    /// In words, with the figures.
    pub(crate) what: String,
    pub(crate) observed: bool,
}

impl Fact {
    pub(crate) fn new(what: impl Into<String>, observed: bool) -> Self {
        Self { what: what.into(), observed }
    }
}
