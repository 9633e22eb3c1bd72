use std::{fs, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::Value;
use testbed::eventually;
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::browser::Browser;

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A system with its board, in a directory of its own. Both end when it is dropped.
pub(crate) struct Shop {
    _up: Child,
    pub(crate) home: PathBuf,
    /// The board's address, without a slash at the end.
    pub(crate) board: String,
}

impl Shop {
    pub(crate) async fn start() -> Result<Self> {
        let home = std::env::temp_dir().join(format!("board-{}", Uuid::new_v4().simple()));
        fs::create_dir_all(&home)?;
        let with = std::env::var("TESTBED_WITH").unwrap_or_else(|_| "local".to_owned());
        let up = Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(["--with", &with, "--no-install", "up"])
            .env("DEMO_HOME", &home)
            .stdout(Stdio::from(fs::File::create(home.join("up.log"))?))
            .kill_on_drop(true)
            .spawn()?;
        let board = eventually("the board's address", DEADLINE, async || {
            let log = fs::read_to_string(home.join("up.log"))?;
            let address =
                log.lines().find_map(|line| line.trim().strip_prefix("board")?.split_whitespace().next());
            Ok(address.map(str::to_owned))
        })
        .await?;
        Ok(Self { _up: up, home, board })
    }

    /// Starts one, and opens its page.
    pub(crate) async fn with_browser() -> Result<(Self, Browser)> {
        let shop = Self::start().await?;
        let browser = Browser::start(&shop.board).await?;
        browser.see("the reconciliation to hold", "#reconciliation.holds").await?;
        Ok((shop, browser))
    }

    /// The address of the database, as its administrator.
    pub(crate) fn admin_url(&self) -> Result<String> {
        self.address("adminUrl")
    }

    /// An address of the system, by its name in the file that `demo up` writes.
    pub(crate) fn address(&self, name: &str) -> Result<String> {
        let state: Value = serde_json::from_slice(&fs::read(self.home.join("state.json"))?)?;
        Ok(state[name].as_str().with_context(|| format!("no {name}"))?.to_owned())
    }

    /// Another `demo` command over the same system.
    pub(crate) fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
        command.args(arguments).env("DEMO_HOME", &self.home).stdout(Stdio::null()).kill_on_drop(true);
        command
    }

    /// The process of the board that `demo up` has started.
    pub(crate) fn board_pid(&self) -> Result<u32> {
        let port = self.board.rsplit(':').next().context("no port")?;
        let address = format!("127.0.0.1:{port}");
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if line.contains("board") && line.split('\0').any(|argument| argument == address) {
                return Ok(pid);
            }
        }
        anyhow::bail!("there is no process of the board")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}
