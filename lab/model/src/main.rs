//! `cargo run --bin model`: explores the model to the end, and refutes each flaw.

use std::{fs, process::ExitCode, time::Instant};

use clap::Parser;
use flaws::Flaw;
use model::{Action, Exploration, Explored, Violation, explore, refute};

/// The most faults of one trace. Each flaw must be refuted with so many, also if fewer are explored.
const FAULTS: u8 = 2;

/// Explores a small model of relay, broker and inbox to the end, and refutes each flaw.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The most faults of one trace of the complete system. Two need 600 MiB of memory, and each more about thirty times as much.
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
    for (flaw, _) in Flaw::modelled() {
        let name = flaw.name();
        let Some((faults, Violation { invariant, trace })) = refute(flaw, FAULTS)? else {
            println!("{name:<32}{:>6}{:>13}  nothing", "-", "-");
            holds = false;
            continue;
        };
        println!("{name:<32}{faults:>6}{:>13}  {}", trace.len(), invariant.text());
        if arguments.traces {
            print_trace(&trace);
        }
    }
    println!("\n{:<28}{:>12.1}", "seconds in all", began.elapsed().as_secs_f64());
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(exploration: &Exploration, began: Instant) {
    let Exploration { states, transitions, depth, quiescent, violation } = exploration;
    for (name, value) in [
        ("states", states.to_string()),
        ("transitions", transitions.to_string()),
        ("depth", depth.to_string()),
        ("quiescent states", quiescent.to_string()),
        ("seconds", format!("{:.1}", began.elapsed().as_secs_f64())),
        ("MiB of memory at most", peak_memory().unwrap_or_else(|| "unknown".into())),
        ("violated", violation.as_ref().map_or("nothing", |violation| violation.invariant.text()).into()),
    ] {
        println!("{name:<28}{value:>12}");
    }
    print_trace(violation.as_ref().map_or(&[], |violation| &violation.trace));
}

fn print_trace(trace: &[Action]) {
    for (index, action) in trace.iter().enumerate() {
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
