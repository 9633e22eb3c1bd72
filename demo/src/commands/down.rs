//! `cargo demo down`: stop and erase.

use std::time::Duration;

use anyhow::Result;
use testbed::{Home, eventually};

use crate::choice::Choice;
use crate::compose::Compose;
use crate::control::Control;
use crate::paths;
use crate::state::State;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// The services drain for nine seconds at most, then the servers go.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// Whatever runs, wherever it runs, and what it left on the disk.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let wanted = choice.wanted();
    if wanted != Some(Home::Docker)
        && let Some(state) = State::read()
        && let Ok(control) = Control::connect(&state.control, &state.token).await
    {
        terminal.say("Stopping the system of `cargo demo up` …");
        control.ask("stop").await?;
        drop(control);
        // The file goes last, after the last process. One that stays belongs to a process that was killed meanwhile.
        eventually("`demo up` to end", GONE_WITHIN, async || {
            let gone = State::read().is_none();
            Ok(gone.then_some(()))
        })
        .await?;
    }
    if wanted != Some(Home::Local)
        && testbed::engine_version().await.is_ok()
        && let Ok(compose) = Compose::new()
    {
        terminal.say("Removing the containers and their data …");
        compose.down(true).await?;
    }
    if paths::home().exists() {
        std::fs::remove_dir_all(paths::home())?;
    }
    terminal.say("Nothing is left.");
    Ok(Verdict::Held)
}
