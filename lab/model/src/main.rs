//! `cargo run --bin model`: explores the model to the end, and refutes each flaw.

use std::{fs, process::ExitCode, time::Instant};

use clap::Parser;
use flaws::Flaw;
use model::{Exploration, Explored, Violation, explore, refute};

/// The most faults of one trace. Each flaw must be refuted with so many, also if fewer are explored.
const FAULTS: u8 = 2;

/// Explores a small model of relay, broker and inbox to the end, and refutes each flaw.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The most faults of one trace of the complete system. Two need 2 GiB of memory, and each more about thirty times as much.
    #[arg(long, default_value_t = FAULTS)]
    faults: u8,
    /// Prints the trace of each flaw.
    #[arg(long)]
    traces: bool,
}

pub(crate) fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let exploration = explore(Explored::bounded(arguments.faults))?;
    print(&exploration, began);
    let mut holds = exploration.violation.is_none();
    println!("\n{:<32}{:>6}{:>13}  violated", "protection left out", "faults", "transitions");
    for (flaw, _) in Flaw::simulated() {
        let Some(refutation) = refute(flaw, FAULTS)? else {
            println!("{:<32}{:>6}{:>13}  nothing", flaw.name(), "-", "-");
            holds = false;
            continue;
        };
        let Violation { invariant, trace } = &refutation.violation;
        println!("{:<32}{:>6}{:>13}  {invariant}", flaw.name(), refutation.faults, trace.len());
        if arguments.traces {
            print_trace(&refutation.violation);
        }
    }
    println!("\n{:<28}{:>12.1}", "seconds in all", began.elapsed().as_secs_f64());
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(exploration: &Exploration, began: Instant) {
    println!("{:<28}{:>12}", "states", exploration.states);
    println!("{:<28}{:>12}", "transitions", exploration.transitions);
    println!("{:<28}{:>12}", "depth", exploration.depth);
    println!("{:<28}{:>12}", "quiescent states", exploration.quiescent);
    println!("{:<28}{:>12.1}", "seconds", began.elapsed().as_secs_f64());
    println!("{:<28}{:>12}", "MiB of memory at most", peak_memory().unwrap_or_else(|| "unknown".into()));
    match &exploration.violation {
        None => println!("{:<28}{:>12}", "violated", "nothing"),
        Some(violation) => {
            println!("{:<28}{}", "violated", violation.invariant);
            print_trace(violation);
        }
    }
}

fn print_trace(violation: &Violation) {
    for (index, action) in violation.trace.iter().enumerate() {
        println!("    {:>2}  {action}", index + 1);
    }
}

/// The largest resident size of this process so far, as Linux tells it.
fn peak_memory() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some((kibibytes / 1024).to_string())
}
