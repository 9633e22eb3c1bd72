//! The board: a live page over the running system. See it, predict, break it, read the verdict.
//!
//! It is a process of its own that reads what anybody may read: `/metrics`, the tables as the auditor, and the list of
//! acknowledged orders. It can be killed at any time; then its faults are repaired, and nothing else notices.

mod answer;
mod assets;
mod board_state;
mod clock;
mod collector;
mod count;
mod failed;
mod faults;
mod guard;
mod load;
mod moves;
mod parts;
mod recording;
mod server;
mod source_lines;
mod step_system;
mod steps;
mod twin;
mod work;

pub(crate) use server::serve;
