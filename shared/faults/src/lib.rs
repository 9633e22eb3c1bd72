//! Named places at which a drill can strike, and named protections that it can switch off.
//!
//! Everything here compiles to nothing unless the feature `drill` is on, and no normal build has it on: [`reach`] is an
//! empty function, and [`sabotaged`] a constant `false`, so that what it guards is not even in the binary. A test reads
//! the binaries and says so. In a drill build two environment variables decide, once per process:
//!
//! - `DRILL_POINT=relay-confirmed:kill` (or `freeze`, or `stop`): what happens when that [`Point`] is reached. With
//!   `DRILL_ONCE=/some/path` it happens once: whoever creates that file strikes, and nobody after.
//! - `DRILL_SABOTAGE=mark-before-confirm`: which [`Sabotage`] is on.

#[cfg(feature = "drill")]
mod armed;
mod point;
mod sabotage;

pub use point::Point;
pub use sabotage::Sabotage;

/// A place was reached. In a drill build this may be the end of the process.
#[inline]
pub fn reach(point: Point) {
    #[cfg(feature = "drill")]
    armed::strike(point);
    #[cfg(not(feature = "drill"))]
    let _ = point;
}

/// Whether a protection is switched off. Without the feature it never is, and the compiler knows.
#[inline]
#[cfg(not(feature = "drill"))]
pub const fn sabotaged(_: Sabotage) -> bool {
    false
}

/// Whether a protection is switched off in this process.
#[cfg(feature = "drill")]
pub fn sabotaged(sabotage: Sabotage) -> bool {
    armed::is_on(sabotage)
}

/// Warns in the log of a process that could strike, and ends one whose `DRILL_…` variables say nothing sensible.
pub fn announce() {
    #[cfg(feature = "drill")]
    armed::announce();
}
