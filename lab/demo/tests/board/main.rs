//! The board over a system that `demo up` runs, most of it in a real Chromium. Those tests need `chromium` and `chromedriver`:
//! `.ci/board` runs them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests say what they saw, and end"
)]

mod browser;
mod kill;
mod load;
mod page;
mod recording;
mod security;
mod shop;
mod twin_and_steps;
