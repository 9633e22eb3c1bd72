//! One file per command.

pub(crate) mod board;
pub(crate) mod bootstrap;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod drill;
pub(crate) mod failed;
pub(crate) mod fetch;
pub(crate) mod judge;
pub(crate) mod load;
pub(crate) mod order;
pub(crate) mod proofs;
pub(crate) mod queries;
pub(crate) mod reset;
pub(crate) mod sabotage;
pub(crate) mod soak;
pub(crate) mod test;
pub(crate) mod tour;
pub(crate) mod trace;
pub(crate) mod up;
pub(crate) mod verify;
pub(crate) mod watch;
