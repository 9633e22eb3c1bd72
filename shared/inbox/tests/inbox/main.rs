//! The inbox against a real PostgreSQL: deduplication, retention and the table of dead letters.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition ends a test")]

mod dead_letter_table;
mod dead_letters;
mod deduplication;
mod order;
mod retention;
mod standby;
mod support;
