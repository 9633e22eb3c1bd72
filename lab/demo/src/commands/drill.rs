//! `cargo demo drill NAME …`: one fault and a verdict each. `list` prints the drills, `all` runs them one after the
//! other, `short` runs six quick ones.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use flaws::Flaw;
use serde_json::{Value, json};

use crate::Verdict;
use crate::alteration::{Alteration, sabotage_name, setting, variant_name};
use crate::choice::Choice;
use crate::drills::{self, Drill, DrillOptions, Group, SERVICE, Subject, own_system, run_both, run_on_own};
use crate::network_system::NetworkSystem;
use crate::proofs::breaks_without;
use crate::running_system::RunningSystem;
use crate::terminal::Terminal;

/// Six quick drills, one for each kind of injection.
const SHORT: [&str; 6] = [
    "confirm-lost",
    "commit-answer-lost",
    "consumer-killed-before-commit",
    "same-key-storm",
    "poison",
    "clocks-wrong",
];

/// Which drills, and on which system.
#[derive(Debug, clap::Args)]
pub(crate) struct DrillArguments {
    /// The names of drills, or `list`, `all`, or `short` for six quick ones.
    #[arg(required = true)]
    names: Vec<String>,
    #[command(flatten)]
    options: DrillOptions,
    /// Start a system in which this variant replaces the order service (docs/variants.md).
    #[arg(long, value_parser = variant_name())]
    variant: Option<Flaw>,
    /// Run the same drill and load on the service and on this variant beside it: two verdicts.
    #[arg(long, value_parser = variant_name(), conflicts_with = "variant")]
    twin: Option<Flaw>,
    /// Start lab programs that leave this protection out, for example mark-before-confirm: a drill that still holds then
    /// has not tested it.
    #[arg(long, value_parser = sabotage_name(), conflicts_with_all = ["variant", "twin"])]
    sabotage: Option<Flaw>,
    /// Start a system in which a setting has this value, such as ORDERS_RELAY_POLL=1h. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting, conflicts_with_all = ["variant", "twin", "sabotage"])]
    set: Vec<(String, String)>,
    /// Start a system that lacks one protection, which this name decides: `demo answer` checks which one you found.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["variant", "twin", "sabotage", "set"])]
    student: Option<String>,
}

/// Runs on the system that is running, or on one of the drill's own. If there is none, it starts one.
pub(crate) async fn run(choice: Choice, arguments: DrillArguments, terminal: &Terminal) -> Result<Verdict> {
    let DrillArguments { names, options, variant, twin, sabotage, set, student } = arguments;
    if let Some(twin) = twin {
        return run_twin(choice, &names, options, twin, terminal).await;
    }
    let settings = Some(set).filter(|set| !set.is_empty()).map(Alteration::Settings);
    let flaw = variant.or(sabotage).map(Alteration::Flaw);
    let hidden = student.map(|student| Alteration::Hidden { student });
    let alteration = flaw.or(hidden).or(settings).unwrap_or_default();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let chosen: Vec<&'static Drill> = match names[..] {
        ["list"] => return list(terminal),
        ["all"] => drills::all().collect(),
        ["short"] => SHORT.into_iter().map(drills::find).collect::<Result<_>>()?,
        _ => names.into_iter().map(drills::find).collect::<Result<_>>()?,
    };
    // They would share one database: each would find again what an earlier one has broken.
    let as_is = alteration == Alteration::None;
    ensure!(chosen.len() == 1 || as_is, "a system that differs from the services runs one drill at a time");
    let mut running = None;
    let results = run_each(choice, &chosen, options, &alteration, &mut running, terminal).await;
    let stopped = match running {
        Some(system) => system.stop(terminal).await,
        None => Ok(()),
    };
    let results = results?;
    stopped?;
    match &results[..] {
        [only] => terminal.document(&only.document)?,
        all => print_results(all, terminal)?,
    }
    Ok(results.iter().fold(Verdict::Held, |worst, result| worst.max(result.judged())))
}

/// Runs a drill on a system with the order service, and beside it on one with a variant instead: the same orders and the same
/// fault. The verdict is that about the service. A variant that holds where it should break has shown nothing.
async fn run_twin(
    choice: Choice,
    names: &[String],
    options: DrillOptions,
    twin: Flaw,
    terminal: &Terminal,
) -> Result<Verdict> {
    let [name] = names else { bail!("a twin runs one drill at a time") };
    let [service, variant] = run_both(choice, drills::find(name)?, options, twin, terminal).await?;
    let width = twin.name().len().max(SERVICE.len());
    terminal.print("");
    for (name, (verdict, _)) in [(SERVICE, &service), (twin.name(), &variant)] {
        terminal.print(format!("{name:<width$}  {}", verdict.word()));
    }
    terminal.document(&[service.1, variant.1])?;
    if service.0 == Verdict::Held && variant.0 == Verdict::Held && breaks_without(name, twin) {
        terminal
            .print(format!("{} held, so the fault has not met what it lacks: nothing is shown", twin.name()));
        return Ok(Verdict::Inconclusive);
    }
    Ok(service.0)
}

/// How one drill ended.
struct DrillResult {
    drill: &'static Drill,
    verdict: Verdict,
    /// Whether it ended as its row says.
    is_as_it_should: bool,
    seconds: f64,
    document: Value,
}

impl DrillResult {
    /// Held, if it ended as it should.
    fn judged(&self) -> Verdict {
        if self.is_as_it_should { Verdict::Held } else { self.verdict }
    }
}

/// `running` is the system for the drills that need no other. The first of them finds or starts it.
async fn run_each(
    choice: Choice,
    chosen: &[&'static Drill],
    options: DrillOptions,
    alteration: &Alteration,
    running: &mut Option<RunningSystem>,
    terminal: &Terminal,
) -> Result<Vec<DrillResult>> {
    let mut results = vec![];
    for drill in chosen {
        let began = Instant::now();
        let in_network = NetworkSystem::from_env();
        let uses_running = match drill.system {
            Subject::Running => *alteration == Alteration::None,
            Subject::Proxied => in_network.is_some_and(|system| system.proxies.is_some()),
            Subject::Own(_) => false,
        };
        let ended = if uses_running {
            if running.is_none() {
                *running = RunningSystem::find_or_start(choice, terminal).await?;
            }
            match running {
                Some(system) => drills::run(drill, options, system, terminal).await,
                None => Ok((Verdict::Interrupted, Value::Null)),
            }
        } else {
            let own = own_system(drill).altered(alteration);
            run_on_own(choice, drill, own, options, terminal).await
        };
        // One drill that could not be run says nothing about the others.
        let (verdict, document) = match ended {
            Err(error) if chosen.len() > 1 => {
                terminal.print(format!("{} could not be run: {error:#}", drill.name));
                (Verdict::Inconclusive, json!({ "drill": drill.name, "error": format!("{error:#}") }))
            }
            ended => ended?,
        };
        let seconds = began.elapsed().as_secs_f64();
        // With an alteration it is for the reader to say.
        let is_as_it_should = *alteration == Alteration::None && document["asItShould"] == true;
        results.push(DrillResult { drill, verdict, is_as_it_should, seconds, document });
        if verdict == Verdict::Interrupted {
            break;
        }
    }
    Ok(results)
}

fn list(terminal: &Terminal) -> Result<Verdict> {
    for group in Group::ALL {
        terminal.print(format!("{group}:"));
        for drill in drills::all().filter(|drill| drill.group == group) {
            terminal.print(format!("  {:<28}  {}", drill.name, drill.teaches));
        }
        terminal.print("");
    }
    terminal
        .print("`cargo demo drill NAME` runs one, `drill all` all of them, `drill short` six quick ones.");
    let list: Vec<_> = drills::all()
        .map(|drill| {
            json!({
                "name": drill.name, "group": drill.group.to_string(), "teaches": drill.teaches,
                "question": drill.question, "claim": drill.claim, "outageSeconds": drill.outage.as_secs(),
                "ownSystem": !matches!(drill.system, Subject::Running),
            })
        })
        .collect();
    terminal.document(&list)?;
    Ok(Verdict::Held)
}

fn print_results(results: &[DrillResult], terminal: &Terminal) -> Result<()> {
    terminal.print("");
    terminal.print(format!("{:<28}  {:<9} {:>7}  verdict", "drill", "group", "seconds"));
    for DrillResult { drill, verdict, is_as_it_should, seconds, .. } in results {
        let by_design = if *is_as_it_should && *verdict != Verdict::Held { ", as it should be" } else { "" };
        terminal.print(format!(
            "{:<28}  {:<9} {seconds:>7.0}  {}{by_design}",
            drill.name,
            drill.group.to_string(),
            verdict.word()
        ));
    }
    let held = results.iter().filter(|result| result.judged() == Verdict::Held).count();
    let seconds: f64 = results.iter().map(|result| result.seconds).sum();
    terminal.print("");
    terminal.print(format!("{held} of {} held, in {:.0} minutes", results.len(), seconds / 60.0));
    let all: Vec<_> = results
        .iter()
        .map(|result| {
            json!({ "verdict": result.verdict, "seconds": result.seconds, "document": result.document })
        })
        .collect();
    terminal.document(&all)
}
