//! What a drill build does at a point, and what it has switched off.

use std::{env, fs::OpenOptions, io::Write, sync::LazyLock, time::Duration};

use rustix::process::{Signal, getpid, kill_process};

use crate::{Point, Sabotage};

/// What happens where.
struct Strike {
    point: Point,
    signal: Signal,
    /// Whoever creates this file strikes.
    once: Option<String>,
}

static STRIKE: LazyLock<Option<Strike>> = LazyLock::new(|| {
    let wanted = env::var("DRILL_POINT").ok()?;
    let (point, action) = wanted.split_once(':').unwrap_or((&wanted, ""));
    let signal = match action {
        "kill" => Signal::KILL,
        "freeze" => Signal::STOP,
        "stop" => Signal::TERM,
        _ => refuse("DRILL_POINT: a point and kill, freeze or stop, such as relay-confirmed:kill"),
    };
    let found = Point::ALL.into_iter().find(|known| known.name() == point);
    let point = found.unwrap_or_else(|| refuse("DRILL_POINT: there is no such point"));
    Some(Strike { point, signal, once: env::var("DRILL_ONCE").ok() })
});

static SABOTAGE: LazyLock<Option<Sabotage>> = LazyLock::new(|| {
    let wanted = env::var("DRILL_SABOTAGE").ok()?;
    let found = Sabotage::ALL.into_iter().find(|known| known.name() == wanted);
    Some(found.unwrap_or_else(|| refuse("DRILL_SABOTAGE: there is no such sabotage")))
});

/// How long a process may take to stop after it has told itself to.
const FREEZES_WITHIN: Duration = Duration::from_millis(500);

#[expect(
    clippy::disallowed_methods,
    reason = "to block this thread of a process that is about to freeze is the point"
)]
pub(crate) fn strike(reached: Point) {
    let Some(strike) = STRIKE.as_ref().filter(|strike| strike.point == reached) else {
        return;
    };
    if let Some(path) = &strike.once {
        let Ok(mut file) = OpenOptions::new().write(true).create_new(true).open(path) else {
            return;
        };
        // Says who struck, to whoever waits for it.
        let _ = write!(file, "{}", getpid());
    }
    // A process may always signal itself; a strike that did not happen is noticed by the drill that waits for it.
    let _ = kill_process(getpid(), strike.signal);
    if strike.signal == Signal::STOP {
        // Any thread may be the one that gets the signal, and stops the others a moment later. Until then this one must
        // not go on: it would be past the point when it freezes.
        std::thread::sleep(FREEZES_WITHIN);
    }
}

pub(crate) fn is_on(sabotage: Sabotage) -> bool {
    *SABOTAGE == Some(sabotage)
}

pub(crate) fn announce() {
    let point = STRIKE.as_ref().map(|strike| strike.point.name());
    let sabotage = SABOTAGE.map(Sabotage::name);
    tracing::warn!(point, sabotage, "this is a drill build: it can kill itself, and lose what it was given");
}

fn refuse(problem: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "wrong setting: {problem}");
    std::process::exit(78);
}
