//! What people see while they wait, and what machines read at the end.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Where there is no terminal to draw on, progress is a line of its own now and then.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Standard output for people; with `--json`, one JSON document there, and the words on standard error.
#[derive(Debug)]
pub(crate) struct Terminal {
    json: bool,
    /// Whether a line can be drawn over.
    live: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    drawn: bool,
    last_plain: Option<Instant>,
}

impl Terminal {
    /// Finds out what it is connected to.
    pub(crate) fn new(json: bool) -> Self {
        let live = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        Self { json, live, state: Mutex::default() }
    }

    /// Whether a machine reads the output.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let clear = if std::mem::take(&mut state.drawn) { "\r\x1b[K" } else { "" };
        self.write(&format!("{clear}{}\n", line.as_ref()));
    }

    /// Progress: drawn over the last one on a terminal, a plain line every five seconds elsewhere.
    pub(crate) fn progress(&self, line: impl AsRef<str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live {
            state.drawn = true;
            self.write(&format!("\r\x1b[K{}", line.as_ref()));
        } else if state.last_plain.is_none_or(|last| last.elapsed() >= PLAIN_EVERY) {
            state.last_plain = Some(Instant::now());
            self.write(&format!("{}\n", line.as_ref()));
        }
    }

    /// A line that is not finished yet: drawn on a terminal, and left out elsewhere.
    pub(crate) fn draw(&self, line: impl AsRef<str>) {
        if self.live {
            self.progress(line);
        }
    }

    /// The one document on standard output, with `--json` only.
    pub(crate) fn document(&self, value: &impl Serialize) -> anyhow::Result<()> {
        if self.json {
            let text = serde_json::to_string_pretty(value)?;
            // A reader that has left (`| head`) is no reason to fail.
            let _ = writeln!(std::io::stdout(), "{text}");
        }
        Ok(())
    }

    fn write(&self, text: &str) {
        let _ = if self.json {
            std::io::stderr().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}
