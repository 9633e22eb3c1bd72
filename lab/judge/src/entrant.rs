//! An entrant: a relay in a folder with a file `entrant.toml`. `docs/judge.md` is the contract.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use testbed::remove_settings;
use tokio::time::{sleep, timeout};

/// A build may compile a library, or download packages.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);
const BUILDING_INTERVAL: Duration = Duration::from_millis(200);
const SETUP_DEADLINE: Duration = Duration::from_secs(60);

/// The folder of the entrants that ship, in a checkout.
const SHIPPED: &str = "lab/judge/entrants";

/// A relay that is judged.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entrant {
    #[serde(skip)]
    pub name: String,
    #[serde(skip)]
    folder: PathBuf,
    /// One sentence: what it is, with its version.
    pub about: String,
    /// Run once, before all levels.
    build: Option<String>,
    /// Run for each new database; without it, the judge creates the outbox of the contract.
    setup: Option<String>,
    run: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The seconds that it may need after a fault, if the levels allow fewer: for a lease, a poll, a timeout.
    #[serde(default)]
    recovers_within: u64,
    /// The header that holds an event's id. Without it, that is `message_id`.
    pub(crate) id_header: Option<String>,
    /// The levels that cannot apply to a relay of this shape, each with the reason.
    #[serde(default)]
    does_not_apply: BTreeMap<String, String>,
    /// The levels that it is known to break, if that is known. Only of an entrant that ships.
    pub breaks: Option<Vec<u8>>,
    /// Those that it breaks by chance.
    #[serde(default)]
    pub sometimes_breaks: Vec<u8>,
    /// Its settings as the clock's table names them: batch, in flight, connections, commits.
    #[serde(default)]
    pub settings: String,
    /// Variables that give it the settings of `ours`, as far as it has them. If it has this table, the clock also times it with these
    /// and asynchronous commits.
    equal: Option<BTreeMap<String, String>>,
    /// Whether its transactions do not wait for the disk.
    #[serde(skip)]
    pub(crate) commits_asynchronously: bool,
    #[serde(default)]
    pub(crate) outbox: OutboxTable,
}

/// How the judge writes an event, and how it tells a pending one.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OutboxTable {
    /// With `:id`, `:aggregate`, `:version`, `:routing_key` and `:payload`.
    pub(crate) insert: String,
    /// A command that writes this statement instead, for each line with an event on its standard input, as one line.
    pub(crate) insert_command: Option<String>,
    /// What the judge executes after each commit, to wake the relay.
    pub(crate) after_commit: Option<String>,
    /// The ids, as text, of all events that are not published, also of those that the relay has set aside.
    pub(crate) pending: String,
    /// What an operator executes after the reason of refusals is gone, where the relay does not try again by itself.
    pub(crate) release: Option<String>,
    /// The command tag of the server's answer when a mark is committed.
    pub(crate) commit: String,
    pub(crate) exchange: String,
}

impl Default for OutboxTable {
    fn default() -> Self {
        Self {
            insert: "insert into outbox (event_id, aggregate_id, aggregate_version, routing_key, payload)
                     values (:id, :aggregate, :version, :routing_key, :payload)"
                .into(),
            insert_command: None,
            after_commit: None,
            release: None,
            pending: "select event_id::text from outbox where published_at is null".into(),
            commit: "COMMIT".into(),
            exchange: "judge.events".into(),
        }
    }
}

impl Entrant {
    /// The names of the entrants in `lab/judge/entrants`.
    pub fn shipped() -> Result<Vec<String>> {
        let mut names = vec![];
        for entry in fs::read_dir(checkout()?.join(SHIPPED)).context("failed to list the entrants")? {
            let folder = entry?.path();
            if folder.join("entrant.toml").exists() {
                names.extend(folder.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Reads an entrant: one that ships, or a folder if the name has a slash.
    pub fn load(name: &str) -> Result<Self> {
        let folder =
            if name.contains('/') { PathBuf::from(name) } else { checkout()?.join(SHIPPED).join(name) };
        let file = folder.join("entrant.toml");
        let text = fs::read_to_string(&file).with_context(|| {
            let names = Self::shipped().unwrap_or_default().join(", ");
            format!(
                "failed to read {}; the entrants are {names}, or name a folder with a slash",
                file.display()
            )
        })?;
        let mut entrant: Self =
            basic_toml::from_str(&text).with_context(|| format!("failed to read {}", file.display()))?;
        if name.contains('/') {
            // What is handed in does not say what it may break.
            entrant.breaks = None;
        }
        let folder = folder.canonicalize()?;
        entrant.name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        entrant.folder = folder;
        Ok(entrant)
    }

    /// The same relay with another value of a variable, under another name.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.name = format!("{}-{value}", self.name);
        self.env.insert(variable.into(), value.into());
        self
    }

    /// The same relay with the settings of `ours`, if it has others.
    pub fn with_equal_settings(&self) -> Option<Self> {
        let mut equal = self.clone();
        let variables = equal.equal.take()?;
        equal.name.push_str("-equal");
        equal.commits_asynchronously = true;
        let changed = variables.iter().map(|(name, value)| format!("{name}={value}, "));
        equal.settings = format!("{}asynchronous commits", changed.collect::<String>());
        equal.env.extend(variables);
        Some(equal)
    }

    /// A deadline of a level, or the time that this relay may need if that is longer.
    pub(crate) fn deadline(&self, deadline: Duration) -> Duration {
        deadline.max(Duration::from_secs(self.recovers_within))
    }

    /// Why a level cannot apply.
    pub fn why_not(&self, level: u8) -> Option<&str> {
        self.does_not_apply.get(&level.to_string()).map(String::as_str)
    }

    /// Runs the build command. One at a time, also of other processes: variations of an entrant share what is built.
    pub async fn build(&self) -> Result<()> {
        let cache = self.cache()?;
        fs::create_dir_all(&cache)?;
        let Some(script) = &self.build else { return Ok(()) };
        let building = File::create(cache.with_extension("lock")).context("failed to create a lock")?;
        let locked = async {
            loop {
                match building.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(TryLockError::WouldBlock) => sleep(BUILDING_INTERVAL).await,
                    Err(TryLockError::Error(error)) => return Err(error),
                }
            }
        };
        let locked = timeout(BUILD_DEADLINE, locked).await;
        locked
            .context("another build of the entrant did not end in time")?
            .context("failed to lock the build")?;
        self.run_to_end(script, &[], BUILD_DEADLINE).await.context("failed to build the entrant")
    }

    /// Creates the outbox in a new database.
    pub(crate) async fn set_up(&self, database_url: &str, amqp_url: &str) -> Result<bool> {
        let Some(script) = &self.setup else { return Ok(false) };
        let servers = [("DATABASE_URL", database_url), ("AMQP_URL", amqp_url)];
        self.run_to_end(script, &servers, SETUP_DEADLINE).await.context("failed to set up the entrant")?;
        Ok(true)
    }

    /// The command of an instance.
    pub(crate) fn command(&self) -> Result<Command> {
        self.shell(&format!("exec {}", self.run))
    }

    /// The command that writes insert statements.
    pub(crate) fn insert_command(&self) -> Result<Option<Command>> {
        self.outbox.insert_command.as_ref().map(|script| self.shell(&format!("exec {script}"))).transpose()
    }

    async fn run_to_end(&self, script: &str, env: &[(&str, &str)], deadline: Duration) -> Result<()> {
        let mut command = tokio::process::Command::from(self.shell(script)?);
        command.envs(env.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(deadline, command.output()).await;
        let output = output.with_context(|| format!("`{script}` took more than {deadline:?}"))??;
        if !output.status.success() {
            bail!("`{script}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn shell(&self, script: &str) -> Result<Command> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&self.folder);
        // What cargo sets for a program that it runs would let a build script run again.
        remove_settings(&mut command, "CARGO_PKG_");
        remove_settings(&mut command, "CARGO_MANIFEST_");
        // An entrant in Rust is built like the judge.
        let (profile, release) =
            if cfg!(debug_assertions) { ("debug", "") } else { ("release", "--release") };
        command.env("PROFILE", profile).env("RELEASE", release);
        command.env("CACHE", self.cache()?).env("EXCHANGE", &self.outbox.exchange).envs(&self.env);
        Ok(command)
    }

    /// Where an entrant keeps what it builds or downloads. Variations of one entrant share it.
    fn cache(&self) -> Result<PathBuf> {
        let name = self.folder.file_name().context("an entrant is a folder with a name")?;
        Ok(home()?.join(name))
    }
}

/// Where the judge keeps what it builds, and the logs of the entrants.
pub(crate) fn home() -> Result<PathBuf> {
    Ok(checkout()?.join("target/judge"))
}

fn checkout() -> Result<PathBuf> {
    testbed::workspace_root().context("the judge runs in a checkout")
}

#[test]
fn an_entrant_says_which_levels_cannot_apply_and_how_soon_it_recovers() {
    let text = "about = 'one'\nrun = 'true'\nrecovers_within = 45\n[does_not_apply]\n5 = 'the table limits the size'";
    let entrant: Entrant = basic_toml::from_str(text).unwrap();
    assert_eq!((entrant.why_not(5), entrant.why_not(6)), (Some("the table limits the size"), None));
    let allowed = |seconds| entrant.deadline(Duration::from_secs(seconds)).as_secs();
    assert_eq!((allowed(30), allowed(60)), (45, 60));
}

#[test]
fn the_page_says_what_each_entrant_breaks() {
    let page = include_str!("../../../docs/judge.md");
    for name in Entrant::shipped().unwrap() {
        let breaks = Entrant::load(&name).unwrap().breaks.unwrap_or_default();
        let breaks: Vec<_> = breaks.iter().map(u8::to_string).collect();
        let breaks = if breaks.is_empty() { "none".to_owned() } else { breaks.join(", ") };
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}`: ")));
        assert!(
            row.is_some_and(|row| row.ends_with(&format!(" | {breaks} |"))),
            "{name} breaks {breaks}: {row:?}"
        );
    }
}
