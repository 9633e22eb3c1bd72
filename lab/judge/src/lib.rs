//! A judge for everyone's outbox relay.
//!
//! An [`Entrant`] is a relay in any language. The judge writes events into its outbox, breaks what stands around it, and
//! compares what was committed with what arrives in a queue. Each of the [`LEVELS`] injects one kind of fault;
//! `docs/judge.md` is the contract.
//!
//! It meets the entrant over SQL, AMQP and signals only, and shares no code with the product: `entrants/ours` is one entrant
//! among others.

mod arrivals;
mod checks;
mod clock;
mod entrant;
mod levels;
mod mistakes;
mod outbox;
mod stage;
mod standby;
mod verdict;

pub use clock::{Bracket, Clock, LATE, MANY, Rate, Round, Timing, bare_publisher, measure};
pub use entrant::Entrant;
pub use levels::{LEVELS, judge};
pub use mistakes::{MISTAKES, Mistake};
pub use stage::Servers;
pub use verdict::{Breach, Fact, LevelResult, Promise, Verdict};
