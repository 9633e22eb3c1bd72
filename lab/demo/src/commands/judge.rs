//! `cargo demo judge`: judges outbox relays level by level, or times them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use judge::{Clock, Entrant, LEVELS, LevelResult, MANY, Rate, Servers, Timing, judge, measure};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Verdict;
use crate::choice::Choice;
use crate::terminal::Terminal;

/// Which entrants, and what.
#[derive(Debug, clap::Args)]
pub(crate) struct JudgeOptions {
    /// Names of entrants in lab/judge/entrants, folders (with a slash), or `all`.
    #[arg(required = true)]
    entrants: Vec<String>,
    /// Only this level. May be repeated.
    #[arg(long = "level", value_parser = clap::value_parser!(u8).range(1..=LEVELS.len() as i64))]
    levels: Vec<u8>,
    /// Time the entrants beside the machine's limits, and judge nothing. It needs a release build.
    #[arg(long, conflicts_with = "levels")]
    clock: bool,
    /// With --clock: everything once with tiny counts. The figures mean nothing.
    #[arg(long, requires = "clock")]
    smoke: bool,
}

/// The variable that adds a mistake to an entrant, and part of its name then.
const MISTAKE: &str = "RELAY_MISTAKE";

/// What was found out about one entrant.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Judged {
    entrant: String,
    about: String,
    levels: Vec<LevelResult>,
    /// The reason for each level that cannot apply to a relay of this shape.
    does_not_apply: BTreeMap<u8, String>,
    /// The levels that it is known to break, where that is known.
    breaks: Option<Vec<u8>>,
    /// Those that it breaks by chance.
    sometimes_breaks: Vec<u8>,
}

impl Judged {
    /// The worst verdict of a level. Held, if it breaks just what it is known to break.
    fn verdict(&self) -> Verdict {
        // Where no level applies, nothing is proven.
        let worst = self.levels.iter().map(|result| result.verdict).max().unwrap_or(Verdict::Inconclusive);
        let Some(known) = &self.breaks else { return worst };
        let as_known = |result: &LevelResult| match result.verdict {
            Verdict::Broken => known.contains(&result.level) || self.sometimes_breaks.contains(&result.level),
            Verdict::Held => !known.contains(&result.level),
            _ => false,
        };
        let is_as_known = !self.levels.is_empty() && self.levels.iter().all(as_known);
        if is_as_known { Verdict::Held } else { worst.max(Verdict::Inconclusive) }
    }
}

pub(crate) async fn run(choice: Choice, options: &JudgeOptions, terminal: &Terminal) -> Result<Verdict> {
    ensure!(
        !options.clock || options.smoke || !cfg!(debug_assertions),
        "built without optimization, the clock can only run with --smoke: cargo run --release --bin demo -- judge …"
    );
    let names = match options.entrants.iter().any(|name| name == "all") {
        true => Entrant::shipped()?,
        false => options.entrants.clone(),
    };
    let mut entrants = names.iter().map(|name| Entrant::load(name)).collect::<Result<Vec<_>>>()?;
    if let Ok(mistake) = std::env::var(MISTAKE) {
        entrants = entrants.into_iter().map(|entrant| entrant.with(MISTAKE, &mistake)).collect();
    }
    let home = choice.for_servers(terminal).await?;
    let servers = choice.start_servers(home, 1, terminal).await?;
    let servers = Servers::set_up(servers).await?;
    let (mut built, mut unbuilt) = (vec![], 0);
    for entrant in &entrants {
        terminal.print(format!("Building {} …", entrant.name));
        match entrant.build().await {
            Ok(()) => built.push(entrant.clone()),
            // A toolchain that this machine lacks says nothing about the others.
            Err(error) if entrants.len() > 1 => {
                terminal.print(format!("{}: not judged: {error:#}", entrant.name));
                unbuilt += 1;
            }
            Err(error) => return Err(error),
        }
    }
    let entrants = built;
    if options.clock {
        return time(&servers, &entrants, options.smoke, terminal).await;
    }
    let levels = match options.levels.is_empty() {
        true => (1..).take(LEVELS.len()).collect(),
        false => options.levels.clone(),
    };
    let mut judged = vec![];
    for entrant in &entrants {
        terminal.print(format!("\n{}: {}", entrant.name, entrant.about));
        let (mut results, mut does_not_apply) = (vec![], BTreeMap::new());
        for level in &levels {
            if let Some(reason) = entrant.why_not(*level) {
                terminal.print(format!("  {level}  does not apply: {reason}"));
                does_not_apply.insert(*level, reason.to_owned());
                continue;
            }
            let result = judge(&servers, entrant, *level).await;
            terminal.print_all(result.lines());
            results.push(result);
        }
        let Entrant { name, about, breaks, sometimes_breaks, .. } = entrant.clone();
        judged.push(Judged {
            entrant: name,
            about,
            levels: results,
            does_not_apply,
            breaks,
            sometimes_breaks,
        });
    }
    if judged.len() > 1 {
        terminal.print("");
        terminal.print_all(table(&judged, &levels));
    }
    let worst = judged.iter().map(Judged::verdict).max().unwrap_or(Verdict::Inconclusive);
    let verdict = if unbuilt > 0 { worst.max(Verdict::Inconclusive) } else { worst };
    let broken =
        judged.iter().flat_map(|judged| &judged.levels).any(|result| result.verdict == Verdict::Broken);
    let reason = if verdict == Verdict::Held && broken {
        "each entrant breaks just what it is known to break (entrant.toml)"
    } else {
        "the worst verdict of a level"
    };
    terminal.print_verdict(verdict, reason);
    terminal.document(&judged)?;
    Ok(verdict)
}

/// One line for each entrant, one column for each level.
fn table(judged: &[Judged], levels: &[u8]) -> Vec<String> {
    let width = judged.iter().map(|judged| judged.entrant.len()).max().unwrap_or_default();
    let columns = |cells: Vec<String>| cells.iter().map(|cell| format!("  {cell:<8}")).collect::<String>();
    let heading = columns(levels.iter().map(|level| format!("level {level}")).collect());
    let mut lines = vec![format!("{:<width$}{heading}", "")];
    for Judged { entrant, levels: results, .. } in judged {
        let short = |level: &u8| match results.iter().find(|result| result.level == *level) {
            Some(result) => result.verdict.word().chars().take(8).collect(),
            None => "-".to_owned(),
        };
        lines.push(format!("{entrant:<width$}{}", columns(levels.iter().map(short).collect())));
    }
    lines.extend(levels.iter().map(|level| {
        let name = LEVELS.get(usize::from(*level) - 1).copied().unwrap_or_default();
        format!("level {level}: {name}")
    }));
    lines
}

/// Times the entrants one after the other, and the machine's limits before them. The raw data are kept in a file.
async fn time(servers: &Servers, entrants: &[Entrant], smoke: bool, terminal: &Terminal) -> Result<Verdict> {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    terminal.print("Measuring the machine's limits …");
    let limits = [limit("relay", "bare publisher", smoke).await?, limit("write", "pgbench", smoke).await?];
    let mut timings = vec![];
    let mut verdict = Verdict::Held;
    for entrant in entrants {
        terminal.print(format!("Timing {} …", entrant.name));
        match measure(servers, entrant, &Clock::new(smoke)).await {
            Ok(timing) => timings.push(timing),
            Err(error) => {
                terminal.print(format!("{}: not timed: {error:#}", entrant.name));
                verdict = Verdict::Inconclusive;
            }
        }
    }
    let cores = std::thread::available_parallelism()?;
    let raw = json!({
        "smoke": smoke, "cores": cores, "load_before": load.trim(), "limits": limits, "timings": timings,
    });
    let file = testbed::workspace_root().context("the clock runs in a checkout")?.join(RAW_DATA);
    let kept = fs::write(&file, serde_json::to_vec_pretty(&raw)?);
    kept.with_context(|| format!("failed to write {}", file.display()))?;
    terminal.print("");
    terminal.print_all(timings_table(&timings));
    terminal.print(format!("\n{cores} cores; load before: {}; the limits of the machine:", load.trim()));
    terminal.print_all(limits.iter().flatten().map(|figure| {
        let text = |key: &str| figure[key].as_str().unwrap_or_default().to_owned();
        let median = figure["median"].as_f64().unwrap_or(f64::NAN);
        format!("- {}: {median:.0} {}", text("name"), text("unit"))
    }));
    terminal.print(format!("Raw data: {RAW_DATA}"));
    if smoke {
        terminal.print("A smoke run: the figures mean nothing.");
    }
    terminal.document(&raw)?;
    Ok(verdict)
}

/// Where the clock keeps every latency.
const RAW_DATA: &str = "target/judge/clock.json";

/// The table of `docs/judge.md`.
fn timings_table(timings: &[Timing]) -> Vec<String> {
    let heading = "| entrant | backlog, events/s | ms of processor for an event: relay, PostgreSQL, RabbitMQ | p50, p99 in ms \
                   at 100/s | at 400/s | at 800/s | held, not held, events/s | with 10 aggregates | with one |";
    let mut lines = vec![heading.to_owned(), "|---|---|---|---|---|---|---|---|---|".to_owned()];
    for timing in timings {
        let Timing { entrant, drained_per_second, relay_cpu, postgres_cpu, rabbitmq_cpu, brackets, .. } =
            timing;
        let held: Vec<_> = brackets
            .iter()
            .map(|bracket| match (bracket.held, bracket.failed) {
                (None, failed) => format!("-, {}", failed.unwrap_or_default()),
                (Some(held), Some(failed)) => format!("{held}, {failed}"),
                (Some(held), None) => format!("{held}, a lower bound"),
            })
            .collect();
        let rates =
            brackets.iter().filter(|bracket| bracket.aggregates == MANY).flat_map(|bracket| &bracket.rates);
        let latency = |per_second| match rates.clone().find(|rate| rate.per_second == per_second) {
            Some(Rate { p50, p99, .. }) => format!("{p50:.1}, {p99:.1}"),
            None => "-".to_owned(),
        };
        let latencies = [100, 400, 800].map(latency).join(" | ");
        lines.push(format!(
            "| `{entrant}` | {drained_per_second:.0} | {relay_cpu:.2}, {postgres_cpu:.2}, {rabbitmq_cpu:.2} | {latencies} | {} |",
            held.join(" | ")
        ));
    }
    lines
}

/// Runs a benchmark of load-tests, and returns its figures of a bare limit.
async fn limit(benchmark: &str, name: &str, smoke: bool) -> Result<Vec<Value>> {
    let mut build = testbed::cargo();
    build.args(["build", "--quiet", "--workspace", "--bin", "load-tests"]).args(testbed::profile_option());
    let root = testbed::workspace_root().context("the clock runs in a checkout")?;
    let built = build.current_dir(&root).status().await.context("failed to build load-tests")?;
    ensure!(built.success(), "failed to build load-tests");
    let mut command = tokio::process::Command::new(testbed::find_service("load-tests")?);
    command.args([benchmark, "--json"]).args(smoke.then_some("--smoke")).kill_on_drop(true);
    // It ends by itself: each of its benchmarks has a deadline.
    let output = command.stderr(Stdio::inherit()).output().await.context("failed to run load-tests")?;
    let reports: Vec<Value> = serde_json::from_slice(&output.stdout).context("failed to read the limits")?;
    let figures = reports.iter().filter_map(|report| report["figures"].as_array()).flatten();
    let of_limit =
        figures.filter(|figure| figure["name"].as_str().is_some_and(|text| text.starts_with(name)));
    let figures: Vec<_> = of_limit.cloned().collect();
    ensure!(!figures.is_empty(), "failed to find the figures of {name}");
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrant_counts_as_held_only_if_it_breaks_just_what_it_is_known_to_break() {
        let level = |level, verdict| LevelResult {
            level,
            name: "",
            verdict,
            breaches: vec![],
            facts: vec![],
            copies: 0,
            restarts: 0,
            seconds: 0.0,
            error: None,
        };
        let verdict = |breaks: Option<&[u8]>, levels| {
            let breaks = breaks.map(<[u8]>::to_vec);
            let (entrant, about, does_not_apply) = (String::new(), String::new(), BTreeMap::new());
            let sometimes_breaks = vec![5];
            Judged { entrant, about, levels, does_not_apply, breaks, sometimes_breaks }.verdict()
        };
        let both = || vec![level(3, Verdict::Held), level(4, Verdict::Broken)];
        assert_eq!(verdict(None, both()), Verdict::Broken);
        assert_eq!(verdict(Some(&[4]), both()), Verdict::Held);
        assert_eq!(verdict(Some(&[]), both()), Verdict::Broken);
        // It has become better than the table says.
        assert_eq!(verdict(Some(&[3, 4]), both()), Verdict::Broken);
        assert_eq!(verdict(Some(&[4]), vec![level(4, Verdict::Held)]), Verdict::Inconclusive);
        for by_chance in [Verdict::Held, Verdict::Broken] {
            assert_eq!(verdict(Some(&[4]), vec![level(5, by_chance)]), Verdict::Held);
        }
        assert_eq!(verdict(Some(&[]), vec![]), Verdict::Inconclusive);
    }
}
