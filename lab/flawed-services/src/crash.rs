//! Arms crash points from environment variables, once per process. Either one point:
//!
//! - `CRASH_POINT=relay-confirmed:kill` (or `freeze`, or `stop`): what happens when that point is reached;
//! - `CRASH_ONCE=/some/path`: it happens in the process that creates this file, and in no other.
//!
//! Or all of them, for an order that is followed step by step:
//!
//! - `CRASH_STEPS=/some/folder`: at each point that the folder's file `points` names, a process writes the point's name into a
//!   file with its process id as the name, and stops itself. It goes on when it is continued.

use std::{
    env,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};
use service::environment::exit_invalid_config;

/// How long a process may take to stop after it has sent itself SIGSTOP.
const FREEZE_DEADLINE: Duration = Duration::from_millis(500);

/// Arms the crash point of `CRASH_POINT`, or all of them. An invalid value ends the process with exit code 78.
pub fn arm_from_env() {
    if let Some(folder) = env::var_os("CRASH_STEPS").map(PathBuf::from) {
        messaging::crash_points::arm(move |reached| stop_at(&folder, reached));
        return;
    }
    let Ok(wanted) = env::var("CRASH_POINT") else { return };
    let (point, action) = wanted.split_once(':').unwrap_or((&wanted, ""));
    let signal = match action {
        "kill" => Signal::KILL,
        "freeze" => Signal::STOP,
        "stop" => Signal::TERM,
        _ => exit_invalid_config(
            "CRASH_POINT: a point and kill, freeze or stop, for example relay-confirmed:kill",
        ),
    };
    let known = messaging::crash_points::ALL.into_iter().find(|known| *known == point);
    let point = known.unwrap_or_else(|| exit_invalid_config("CRASH_POINT: there is no such point"));
    let once = env::var("CRASH_ONCE").ok();
    messaging::crash_points::arm(move |reached| {
        if reached == point && once.as_deref().is_none_or(claim) {
            signal_self(signal);
        }
    });
}

/// Creates the file with this process's id. `false`: another process, or this one, has created it before.
fn claim(path: &str) -> bool {
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    created.is_ok_and(|mut file| {
        // A drill reads the id to know which process was hit.
        let _ = write!(file, "{}", getpid());
        true
    })
}

/// Stops this process if the folder's file `points` names the point that it has reached.
fn stop_at(folder: &Path, reached: &str) {
    let wanted = fs::read_to_string(folder.join("points")).unwrap_or_default();
    if wanted.lines().any(|point| point == reached) {
        let place = folder.join(getpid().to_string());
        if fs::write(place, reached).is_ok() {
            signal_self(Signal::STOP);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "blocking this thread of a process that freezes is intended")]
fn signal_self(signal: Signal) {
    // A process may always signal itself.
    let _ = kill_process(getpid(), signal);
    if signal == Signal::STOP {
        // Any thread may receive the signal and stop the others a moment later. Until then this thread must not go on: it
        // would be past the point when it freezes.
        std::thread::sleep(FREEZE_DEADLINE);
    }
}
