//! What a command prints: lines for people, and with `--json` one document for programs.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Verdict;

/// How often progress is printed where it cannot be drawn over the last line.
const PLAIN_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Prints to standard output. With `--json` the document goes there, and the lines go to standard error.
#[derive(Debug)]
pub(crate) struct Terminal {
    json: bool,
    /// Whether a line can be drawn over.
    live: bool,
    /// Before each line.
    label: String,
    /// Where each line is kept as well.
    copy: Option<Arc<Mutex<Vec<String>>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    drawn: bool,
    last_plain: Option<Instant>,
}

impl Terminal {
    pub(crate) fn new(json: bool) -> Self {
        let live = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        Self { json, live, label: String::new(), copy: None, state: Mutex::default() }
    }

    /// One for a part of the work that runs beside others: each line begins with its label, and none is drawn over.
    pub(crate) fn labelled(&self, label: &str) -> Self {
        let (label, copy) = (format!("{label} | "), self.copy.clone());
        Self { json: self.json, live: false, label, copy, state: Mutex::default() }
    }

    /// The same, and each line is also appended to a list. Progress is not.
    pub(crate) fn copied_to(self, lines: Arc<Mutex<Vec<String>>>) -> Self {
        Self { copy: Some(lines), ..self }
    }

    /// Whether `--json` was given.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints a line.
    pub(crate) fn print(&self, line: impl AsRef<str>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let clear = if std::mem::take(&mut state.drawn) { "\r\x1b[K" } else { "" };
        let line = format!("{}{}", self.label, printable(line.as_ref()));
        self.write(&format!("{clear}{line}\n"));
        if let Some(copy) = &self.copy {
            copy.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    pub(crate) fn print_all(&self, lines: impl IntoIterator<Item = impl AsRef<str>>) {
        for line in lines {
            self.print(line);
        }
    }

    /// Prints the verdict as the last line, after an empty one.
    pub(crate) fn print_verdict(&self, verdict: Verdict, reason: &str) {
        self.print("");
        self.print(format!("VERDICT  {}: {reason}", verdict.word()));
    }

    /// Asks a question with the answer yes or no. Yes is the default, and the answer where no one can be asked.
    pub(crate) async fn ask(&self, question: impl AsRef<str>) -> anyhow::Result<bool> {
        if !self.live || !std::io::stdin().is_terminal() {
            return Ok(true);
        }
        self.write(question.as_ref());
        let answer = tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose()).await??;
        let answer = answer.unwrap_or_default().to_lowercase();
        Ok(["", "y", "yes"].contains(&answer.trim()))
    }

    /// Shows progress: drawn over the last line on a terminal, a line of its own every few seconds elsewhere.
    pub(crate) fn progress(&self, line: impl AsRef<str>) {
        let line = printable(line.as_ref());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live {
            state.drawn = true;
            self.write(&format!("\r\x1b[K{line}"));
        } else if state.last_plain.is_none_or(|last| last.elapsed() >= PLAIN_PROGRESS_INTERVAL) {
            state.last_plain = Some(Instant::now());
            self.write(&format!("{}{line}\n", self.label));
        }
    }

    /// Writes the document to standard output, with `--json` only.
    pub(crate) fn document(&self, value: &impl Serialize) -> anyhow::Result<()> {
        if self.json {
            let text = serde_json::to_string_pretty(value)?;
            // A reader that closed the pipe (`| head`) is no reason to fail.
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

/// Escapes control characters, except line breaks and tabs. Lines quote what a message holds, and a message must not be able to
/// clear the screen, or to hide a line from the person who reads it.
fn printable(line: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !line.contains(is_unsafe) {
        return Cow::Borrowed(line);
    }
    line.chars().map(|c| if is_unsafe(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_write_escape_sequences_to_the_terminal() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let terminal = Terminal::new(false).copied_to(lines.clone());
        terminal.print("\u{1b}[2J\u{1b}[H\u{9b}8mNothing\tis set aside.\r\u{7}\nä");
        let printed = lines.lock().unwrap().concat();
        assert_eq!(printed, "\\u{1b}[2J\\u{1b}[H\\u{9b}8mNothing\tis set aside.\\u{d}\\u{7}\nä");
    }
}
