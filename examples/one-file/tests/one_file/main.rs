//! The one file with real servers, and what must stay true of its text.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

mod duplicates;
mod kills;
mod program;
mod text;
