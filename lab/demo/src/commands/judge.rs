//! `cargo demo judge`: judges outbox relays level by level, or times them.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use judge::{
    Clock, Entrant, LEVELS, LevelResult, MANY, Rate, Round, Servers, Timing, bare_publisher, judge, measure,
};
use serde::Serialize;
use serde_json::json;

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
    /// With --clock: how often each entrant is timed, in turn.
    #[arg(long, requires = "clock", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
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
        return time(&servers, &entrants, options, terminal).await;
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

/// Times the entrants in turn, round by round, and the limit of the machine. The raw data are kept in a file.
async fn time(
    servers: &Servers,
    entrants: &[Entrant],
    options: &JudgeOptions,
    terminal: &Terminal,
) -> Result<Verdict> {
    let smoke = options.smoke;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let clock = Clock::new(smoke);
    let with_equal =
        entrants.iter().flat_map(|entrant| [Some(entrant.clone()), entrant.with_equal_settings()]);
    let mut timings: Vec<_> = with_equal
        .flatten()
        .map(|entrant| {
            let timing =
                Timing { entrant: entrant.name.clone(), settings: entrant.settings.clone(), rounds: vec![] };
            (entrant, timing)
        })
        .collect();
    let mut limits = [1, 2, 4].map(|connections| (connections, vec![]));
    let mut verdict = Verdict::Held;
    for round in 1..=if smoke { 1 } else { options.rounds } {
        for (connections, rates) in &mut limits {
            rates.push(bare_publisher(servers, &clock, *connections).await?);
        }
        for (entrant, timing) in &mut timings {
            terminal.print(format!("Round {round}: timing {} …", entrant.name));
            match measure(servers, entrant, &clock).await {
                Ok(round) => timing.rounds.push(round),
                Err(error) => {
                    terminal.print(format!("{}: not timed: {error:#}", entrant.name));
                    verdict = Verdict::Inconclusive;
                }
            }
        }
    }
    let timings: Vec<_> = timings.into_iter().map(|(_, timing)| timing).collect();
    let cores = std::thread::available_parallelism()?;
    let raw = json!({
        "smoke": smoke, "cores": cores, "load_before": load.trim(), "bare_publisher": limits, "timings": timings,
    });
    let file = testbed::workspace_root().context("the clock runs in a checkout")?.join(RAW_DATA);
    let kept = fs::write(&file, serde_json::to_vec_pretty(&raw)?);
    kept.with_context(|| format!("failed to write {}", file.display()))?;
    terminal.print("");
    terminal.print_all(timings_tables(&timings));
    terminal.print(format!(
        "\n{cores} cores; load before: {}. A bare publisher into the same queue:",
        load.trim()
    ));
    terminal.print_all(limits.map(|(connections, rates)| {
        format!("- {connections} connection(s): {} messages/s", spread(rates, 0))
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

/// The tables of `docs/judge.md`.
fn timings_tables(timings: &[Timing]) -> Vec<String> {
    let mut rates = vec![
        "| entrant | backlog, events/s | ms of processor for an event: relay, PostgreSQL, RabbitMQ | held, not held with \
         1,000 aggregates | with ten | with one |"
            .to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    let mut latencies = vec![
        String::new(),
        "| p50 / p99 in ms at | 100/s | 200/s | 400/s | 800/s | a write at 100/s | writes late, p99 |"
            .to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for Timing { entrant, rounds, .. } in timings {
        let each = |figure: fn(&Round) -> f64, digits| spread(rounds.iter().map(figure), digits);
        let backlog = each(|round| round.drained_per_second, 0);
        let cpu = [
            each(|round| round.relay_cpu, 2),
            each(|round| round.postgres_cpu, 2),
            each(|round| round.rabbitmq_cpu, 2),
        ];
        let bracket = |aggregates| {
            let of_rounds = rounds.iter().flat_map(|round| &round.brackets);
            of_rounds.filter(move |bracket| bracket.aggregates == aggregates)
        };
        let held = [MANY, 10, 1].map(|aggregates| {
            let held = bracket(aggregates).map(|bracket| bracket.held.unwrap_or_default() as f64);
            let failed = bracket(aggregates).filter_map(|bracket| Some(bracket.failed? as f64));
            let failed = if failed.clone().next().is_some() { spread(failed, 0) } else { "none".into() };
            format!("{}, {failed}", spread(held, 0))
        });
        rates.push(format!("| `{entrant}` | {backlog} | {} | {} |", cpu.join(", "), held.join(" | ")));
        let at = |per_second| {
            bracket(MANY).flat_map(|bracket| &bracket.rates).filter(move |rate| rate.per_second == per_second)
        };
        let of = |per_second, figure: fn(&Rate) -> f64| spread(at(per_second).map(figure), 1);
        let late = [100, 200, 400, 800].map(|per_second| {
            format!("{} / {}", of(per_second, |rate| rate.p50), of(per_second, |rate| rate.p99))
        });
        let (write, lateness) = (of(100, |rate| rate.write), of(100, |rate| rate.lateness));
        latencies.push(format!("| `{entrant}` | {} | {write} | {lateness} |", late.join(" | ")));
    }
    rates.append(&mut latencies);
    rates.push(String::new());
    rates.extend(timings.iter().map(|timing| format!("- `{}`: {}", timing.entrant, timing.settings)));
    rates
}

/// The median, with the lowest and the highest. A dash: there is none.
fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => "-".into(),
        [only] => format!("{only:.digits$}"),
        [lowest, .., highest] => {
            let median = values[values.len() / 2];
            format!("{median:.digits$} ({lowest:.digits$}–{highest:.digits$})")
        }
    }
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
