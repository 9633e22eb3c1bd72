//! `cargo demo down`: stops everything and erases its data.

use std::time::Duration;

use anyhow::Result;
use testbed::{Home, eventually};

use crate::Verdict;
use crate::choice::Choice;
use crate::compose::Compose;
use crate::control::Control;
use crate::paths;
use crate::state::State;
use crate::terminal::Terminal;

/// The services stop within nine seconds, and the servers are killed after that.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Stops the processes of `demo up` and removes the containers, with their data and the files of the demo.
pub(crate) async fn run(choice: Choice, terminal: &Terminal) -> Result<Verdict> {
    let requested = choice.with;
    if requested != Some(Home::Docker)
        && let Some(state) = State::read()
        && let Ok(control) = Control::connect(&state.control, &state.token).await
    {
        terminal.print("Stopping the system of `cargo demo up` …");
        control.request("stop").await?;
        drop(control);
        // `demo up` removes its file after its last process. It stays if `demo up` is killed meanwhile.
        eventually("`demo up` to end", STOP_DEADLINE, async || Ok(State::read().is_none().then_some(())))
            .await?;
    }
    if requested != Some(Home::Local)
        && testbed::engine_version().await.is_ok()
        && let Ok(compose) = Compose::new()
    {
        terminal.print("Removing the containers and their data …");
        compose.down(true).await?;
    }
    if paths::home().exists() {
        std::fs::remove_dir_all(paths::home())?;
    }
    terminal.print("Everything is stopped and erased.");
    Ok(Verdict::Held)
}
