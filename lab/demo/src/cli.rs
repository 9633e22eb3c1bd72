//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use flaws::Flaw;
use humantime::parse_duration;
use testbed::Home;
use uuid::Uuid;

use crate::Verdict;
use crate::alteration::sabotage_name;
use crate::choice::{Choice, home};
use crate::commands::failed::{self, FailedCommand};
use crate::commands::{
    board, bootstrap, check, doctor, down, drill, fetch, judge, load, order, proofs, queries, reset,
    sabotage, soak, test, tour, trace, up, verify, watch,
};
use crate::interrupt::or_interrupted;
use crate::soak::Soak;
use crate::terminal::Terminal;
use crate::watch::Watch;
use crate::without;

/// The transactional outbox: run it, break it, and reconcile the records. Without a command: the tour.
///
/// Exit codes: 0 every promise held, 1 a promise was broken, 2 the environment failed or nothing was proven,
/// 3 interrupted (and repaired).
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
pub struct Cli {
    /// Where the servers run. Without it: in containers if an engine answers, else from this machine's binaries.
    #[arg(long, global = true, value_parser = home(), env = "DEMO_WITH")]
    with: Option<Home>,
    /// Do not install packages. Otherwise missing servers are installed as root on Debian and Ubuntu.
    #[arg(long, global = true)]
    no_install: bool,
    /// Print one JSON document to standard output, and everything else to standard error.
    #[arg(long, global = true)]
    json: bool,
    /// Build the product without this protection, and run the command there (docs/ladder.md lists them).
    #[arg(long, global = true, value_name = "PROTECTION")]
    without: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the system and keep it running; Ctrl-C stops it.
    Up {
        /// How many nodes RabbitMQ has: 1, or 3 processes of this machine (docs/nodes.md).
        #[arg(long, default_value = "1", value_parser = ["1", "3"])]
        nodes: String,
        /// How many processes of each service run, on this machine (docs/operations.md#several-instances).
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
        instances: u8,
    },
    /// Serve a live page over the running system. `demo up` starts it too.
    Board {
        /// Where it listens: on loopback, or in a container. A program that can reach it can break the system.
        #[arg(long, default_value = "127.0.0.1:8090")]
        address: SocketAddr,
    },
    /// Place one order and follow it to its end.
    Order {
        /// Whether the order can be confirmed, and why not.
        #[arg(long, value_enum, default_value_t)]
        kind: order::OrderKind,
    },
    /// Break one thing under load, repair it, and reconcile.
    Drill(drill::DrillArguments),
    /// Reconcile the running system: compare the acknowledged orders with the records of all services.
    Verify {
        /// How long to wait until nothing is pending.
        #[arg(long, default_value = "30s", value_parser = parse_duration)]
        wait: Duration,
        /// An order for which you got a 201, from curl for example: if it does not exist, it was lost. May be repeated.
        #[arg(long = "order", value_name = "ID")]
        orders: Vec<Uuid>,
    },
    /// Run the check of a lab, in the terminal in which you did it; for an autograder with --json.
    Check {
        /// The lab's number.
        lab: u8,
        /// Whose format --json prints.
        #[arg(long, value_enum, default_value = "gradescope")]
        grader: check::Grader,
    },
    /// Check which protection you think a system of `drill --student` lacks, and which promise it breaks.
    Answer {
        /// The name that was given to the drill.
        #[arg(long)]
        student: String,
        /// The missing protection.
        #[arg(long, value_parser = sabotage_name())]
        flaw: Flaw,
        /// The broken promise: the number of an invariant of docs/guarantees.md, for example I3.
        #[arg(long)]
        promise: String,
        /// Whose format --json prints.
        #[arg(long, value_enum, default_value = "gradescope")]
        grader: check::Grader,
    },
    /// List, show, replay or discard what the running system has set aside.
    #[command(subcommand)]
    Failed(FailedCommand),
    /// Place orders at a constant rate with the running system.
    Load {
        /// Orders per second.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// For how long.
        #[arg(long = "for", default_value = "30s", value_parser = parse_duration)]
        for_: Duration,
    },
    /// Run the tests, with the servers that they need.
    Test(test::TestOptions),
    /// Judge outbox relays in any language: break what stands around them, and say which promise each keeps (docs/judge.md).
    Judge(judge::JudgeOptions),
    /// List everything that proves something, with its owner and its last result; --run runs what an owner has.
    Proofs(proofs::ProofsOptions),
    /// Leave out each protection once, and show which check notices.
    Sabotage,
    /// Run four order services and two of each consumer, inject a random fault every few seconds, and reconcile.
    Soak(Soak),
    /// Show one order on its way through all services as a distributed trace.
    Trace,
    /// Watch a system with a real Prometheus: the dashboard's queries, and each alert under a fault that fires it (forty
    /// minutes).
    Watch(Watch),
    /// Renew `.sqlx` after a change of a query or a migration.
    Queries {
        /// Write nothing; fail if something would change.
        #[arg(long)]
        check: bool,
    },
    /// Show what this machine has, and what is missing.
    Doctor,
    /// Stop everything, and erase its data.
    Down,
    /// Empty every table except the seed data.
    Reset,
    /// Create the logins and schemas: the setup step of the containers.
    #[command(hide = true)]
    Bootstrap,
    /// Print a page, for images without another HTTP client.
    #[command(hide = true)]
    Fetch {
        /// Its address.
        url: String,
    },
}

impl Cli {
    /// Runs the command.
    pub async fn run(self) -> Result<Verdict> {
        if let Some(protection) = self.without {
            return without::run(&protection, self.json);
        }
        let terminal = &Terminal::new(self.json);
        let choice = Choice { with: self.with, may_install: !self.no_install };
        match self.command {
            // These three repair or stop something when they are interrupted, so they handle Ctrl-C themselves.
            None => tour::run(choice, terminal).await,
            Some(Command::Up { nodes, instances }) => {
                up::run(choice, nodes.parse()?, instances.into(), terminal).await
            }
            Some(Command::Drill(arguments)) => drill::run(choice, arguments, terminal).await,
            Some(Command::Board { address }) => or_interrupted(board::run(choice, address, terminal)).await,
            Some(Command::Order { kind }) => or_interrupted(order::run(choice, kind, terminal)).await,
            Some(Command::Verify { wait, orders }) => {
                or_interrupted(verify::run(choice, wait, &orders, terminal)).await
            }
            Some(Command::Answer { student, flaw, promise, grader }) => {
                check::answer(&student, flaw, &promise, grader, terminal)
            }
            Some(Command::Check { lab, grader }) => or_interrupted(check::run(lab, grader, terminal)).await,
            Some(Command::Load { rate, for_ }) => {
                or_interrupted(load::run(choice, rate, for_, terminal)).await
            }
            Some(Command::Test(options)) => or_interrupted(test::run(choice, &options, terminal)).await,
            Some(Command::Judge(options)) => or_interrupted(judge::run(choice, &options, terminal)).await,
            Some(Command::Proofs(options)) => or_interrupted(proofs::run(choice, &options, terminal)).await,
            Some(Command::Sabotage) => or_interrupted(sabotage::run(choice, terminal)).await,
            Some(Command::Soak(soak)) => or_interrupted(soak::run(choice, soak, terminal)).await,
            Some(Command::Trace) => or_interrupted(trace::run(choice, terminal)).await,
            Some(Command::Watch(watch)) => or_interrupted(watch::run(choice, watch, terminal)).await,
            Some(Command::Queries { check }) => or_interrupted(queries::run(choice, check, terminal)).await,
            Some(Command::Doctor) => or_interrupted(doctor::run(terminal)).await,
            Some(Command::Down) => or_interrupted(down::run(choice, terminal)).await,
            Some(Command::Reset) => or_interrupted(reset::run(choice, terminal)).await,
            Some(Command::Bootstrap) => or_interrupted(bootstrap::run(terminal)).await,
            Some(Command::Failed(command)) => or_interrupted(failed::run(choice, command, terminal)).await,
            Some(Command::Fetch { url }) => or_interrupted(fetch::run(&url, terminal)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
