//! The command line.

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::choice::{Choice, With};
use crate::commands::aside::{self, Aside};
use crate::commands::{
    bootstrap, doctor, down, drill, fetch, load, order, queries, reset, sabotage, soak, test, tour, up,
    verify,
};
use crate::drills::Options;
use crate::interrupt::or_interrupted;
use crate::terminal::Terminal;
use crate::variant::Variant;
use crate::verdict::Verdict;

/// The transactional outbox: run it, break it, and count. Without a command: the tour, by itself.
///
/// Exit codes: 0 the promise held, 1 a promise was broken, 2 the environment failed or nothing was proven,
/// 3 interrupted (and mended).
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
pub struct Cli {
    /// Where things run. Without it: in containers if an engine answers, else from this machine's binaries.
    #[arg(long, global = true, value_enum)]
    with: Option<With>,
    /// Never install packages, not even as root on Debian or Ubuntu.
    #[arg(long, global = true)]
    no_install: bool,
    /// One JSON document on standard output; the words for people go to standard error.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start and stay; Ctrl-C stops all that it started.
    Up,
    /// Place one order and follow it to its end.
    Order {
        /// Which: one that ends well, or one that does not.
        #[arg(long, value_enum, default_value_t)]
        kind: order::Kind,
    },
    /// Break one thing under load, mend it, and count: a drill's name, `list` or `all`.
    Drill {
        /// Which.
        name: String,
        /// Orders per second.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// How long the fault lasts.
        #[arg(long, default_value = "20s", value_parser = duration)]
        outage: Duration,
        /// On a system of its own, with the order written as it should not be: docs/variants.md says what to watch.
        #[arg(long, value_enum)]
        variant: Option<Variant>,
    },
    /// The conservation sum of the running system.
    Verify {
        /// How long to wait for what is on its way.
        #[arg(long, default_value = "30s", value_parser = duration)]
        wait: Duration,
    },
    /// What was set aside in the running system: look at it, replay it, discard it.
    Aside {
        #[command(subcommand)]
        what: Aside,
    },
    /// Open-loop load on the running system.
    Load {
        /// Orders per second.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// For how long.
        #[arg(long = "for", default_value = "30s", value_parser = duration)]
        for_: Duration,
    },
    /// Every test, with what it needs started and stopped around it.
    Test {
        /// For cargo: `cargo demo test -- -p outbox`.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Leave out every protection once, and see who notices.
    Sabotage,
    /// Four order services, two of each consumer, something killed every few seconds; then count.
    Soak {
        /// For how long.
        #[arg(long = "for", default_value = "10m", value_parser = duration)]
        for_: Duration,
        /// Orders per second; every second one is cancelled at once.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..))]
        rate: u32,
        /// Who is killed when.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Renew `.sqlx` after a change of a query or a migration (needs sqlx-cli).
    Queries {
        /// Write nothing; fail if something would change.
        #[arg(long)]
        check: bool,
    },
    /// What this machine has and lacks.
    Doctor,
    /// Stop and erase.
    Down,
    /// Back to the seeds.
    Reset,
    /// The containers' setup step.
    #[command(hide = true)]
    Bootstrap,
    /// Prints a page: for images without a tool of their own.
    #[command(hide = true)]
    Fetch {
        /// Its address.
        url: String,
        /// As an operator, with the token in this variable; the answer begins with its status.
        #[arg(long)]
        token_from: Option<String>,
        /// Sends what comes on standard input.
        #[arg(long, requires = "token_from")]
        post: bool,
    },
}

/// What the tour shows, in less than a minute and a half.
const TOUR: Options = Options { rate: 100, outage: Duration::from_secs(20) };

impl Cli {
    /// Does it.
    pub async fn run(self) -> Result<Verdict> {
        let terminal = &Terminal::new(self.json);
        let choice = Choice { with: self.with, may_install: !self.no_install };
        match self.command {
            // These mend or stop something when they are interrupted, so they listen for Ctrl-C themselves.
            None => tour::run(choice, TOUR, terminal).await,
            Some(Command::Up) => up::run(choice, terminal).await,
            Some(Command::Drill { name, rate, outage, variant }) => {
                drill::run(choice, &name, Options { rate, outage }, variant, terminal).await
            }
            Some(Command::Order { kind }) => or_interrupted(order::run(choice, kind, terminal)).await,
            Some(Command::Verify { wait }) => or_interrupted(verify::run(choice, wait, terminal)).await,
            Some(Command::Load { rate, for_ }) => {
                or_interrupted(load::run(choice, rate, for_, terminal)).await
            }
            Some(Command::Test { args }) => or_interrupted(test::run(choice, &args, terminal)).await,
            Some(Command::Sabotage) => or_interrupted(sabotage::run(choice, terminal)).await,
            Some(Command::Soak { for_, rate, seed }) => {
                or_interrupted(soak::run(choice, for_, rate, seed, terminal)).await
            }
            Some(Command::Queries { check }) => or_interrupted(queries::run(choice, check, terminal)).await,
            Some(Command::Doctor) => or_interrupted(doctor::run(terminal)).await,
            Some(Command::Down) => or_interrupted(down::run(choice, terminal)).await,
            Some(Command::Reset) => or_interrupted(reset::run(choice, terminal)).await,
            Some(Command::Bootstrap) => or_interrupted(bootstrap::run(terminal)).await,
            Some(Command::Aside { what }) => or_interrupted(aside::run(choice, what, terminal)).await,
            Some(Command::Fetch { url, token_from, post }) => {
                or_interrupted(fetch::run(&url, token_from.as_deref(), post, terminal)).await
            }
        }
    }
}

/// `500ms`, `30s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text[..text.len() - unit.len()].parse::<u64>();
    let number = number.map_err(|_| format!("`{text}` is no duration: 500ms, 30s or 2m was expected"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(format!("`{text}` has no unit: 500ms, 30s or 2m was expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_need_a_number_and_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "s", "30", "1 fortnight", "-1s", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
