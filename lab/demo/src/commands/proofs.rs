//! `cargo demo proofs`: lists what proves something, with its owner and its last result, or runs what an owner has.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, stream};
use humantime::format_rfc3339_seconds;
use serde_json::{Value, json};
use testbed::{Home, build_lab, fewer};
use tokio::process::Command;
use tokio::time::timeout;

use crate::Verdict;
use crate::choice::Choice;
use crate::proofs::{Ended, KEPT, Owner, Proof, Run, all, keep, kept};
use crate::terminal::Terminal;

/// So many levels of relays are judged at a time, each with separate servers. Fewer on a slow machine.
const JUDGED_AT_ONCE: u32 = 3;
/// The longest proofs take ten minutes. Without this, one that hangs would keep the others from running.
const PROOF_DEADLINE: Duration = Duration::from_secs(3_600);
/// The exit code of [`Verdict::Inconclusive`].
const NOTHING_PROVEN: i32 = 2;
const LOGS: &str = "target/demo/proofs";

/// What to list or to run.
#[derive(Debug, clap::Args)]
pub(crate) struct ProofsOptions {
    /// Run what this owner has. Without it: list everything.
    #[arg(long)]
    run: Option<Owner>,
    /// Run a part of it: K/N, with K from 0 to N - 1.
    #[arg(long, requires = "run", value_parser = part)]
    part: Option<(usize, usize)>,
    /// Only proofs with this text in their names.
    #[arg(long, default_value = "")]
    only: String,
    /// Keep the results in docs/evidence/proofs.json.
    #[arg(long, requires = "run")]
    keep: bool,
}

fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers =
        text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers.filter(|(part, parts)| part < parts).ok_or_else(|| "K/N, with K from 0 to N - 1".to_owned())
}

pub(crate) async fn run(choice: Choice, options: &ProofsOptions, terminal: &Terminal) -> Result<Verdict> {
    let day = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    let mut proofs = all(day)?;
    proofs.retain(|proof| proof.name.contains(&options.only));
    let Some(owner) = options.run else { return list(&proofs, terminal) };
    proofs.retain(|proof| proof.owner == owner);
    let (part, parts) = options.part.unwrap_or((0, 1));
    let chosen: Vec<_> = proofs.iter().skip(part).step_by(parts).collect();
    ensure!(!chosen.is_empty(), "there are no such proofs");
    // The programs and the servers, once for all.
    let home = choice.for_servers(terminal).await?;
    build_lab(!terminal.json()).await?;
    let logs = testbed::workspace_root().context("proofs are run in a checkout")?.join(LOGS);
    fs::create_dir_all(&logs).with_context(|| format!("failed to create {}", logs.display()))?;
    // What a load or all cores are part of runs alone.
    let (judged, alone): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|proof| matches!(proof.run, Run::Judge(..)));
    // Read once: an experiment is a test, for which cargo may build this program again.
    let place = Place { program: std::env::current_exe()?, home, logs };
    let mut ended = vec![];
    for (proofs, at_once) in [(alone, 1), (judged, fewer(JUDGED_AT_ONCE) as usize)] {
        let mut run = stream::iter(proofs).map(|proof| run_one(proof, &place)).buffer_unordered(at_once);
        while let Some(one) = run.next().await {
            let Ended { proof, seconds, found, wrong, .. } = &one;
            let state = wrong.as_ref().map_or("as it must be".to_owned(), |wrong| format!("WRONG: {wrong}"));
            terminal.print(format!("{proof}: {state} ({seconds} s) {found}"));
            if options.keep {
                keep(std::slice::from_ref(&one))?;
            }
            ended.push(one);
        }
    }
    let wrong: Vec<_> = ended.iter().filter(|ended| ended.wrong.is_some()).collect();
    let reason = match &wrong[..] {
        [] => format!("{} proofs ended as they must", ended.len()),
        _ => {
            let names: Vec<_> = wrong.iter().map(|ended| &*ended.proof).collect();
            format!(
                "{} of {} did not end as they must: {} ({LOGS})",
                names.len(),
                ended.len(),
                names.join(", ")
            )
        }
    };
    let verdict = match &wrong[..] {
        [] => Verdict::Held,
        _ if wrong.iter().all(|ended| ended.is_unproven) => Verdict::Inconclusive,
        _ => Verdict::Broken,
    };
    terminal.print_verdict(verdict, &reason);
    terminal.document(&ended)?;
    Ok(verdict)
}

/// With what proofs are run, and where.
struct Place {
    program: PathBuf,
    home: Home,
    logs: PathBuf,
}

/// Runs one proof in another process of this program. One that has proven
/// nothing, as happens on a busy machine, runs once more.
async fn run_one(proof: &Proof, place: &Place) -> Ended {
    let (at, began) = (format_rfc3339_seconds(SystemTime::now()).to_string(), Instant::now());
    let mut ended = output(proof, place).await;
    if matches!(ended, Ok((Some(NOTHING_PROVEN), _))) {
        ended = output(proof, place).await;
    }
    let (found, wrong, is_unproven) = match ended {
        Ok((code, document)) => {
            (found(&document), proof.what_is_wrong(code, &document), code == Some(NOTHING_PROVEN))
        }
        Err(error) => (String::new(), Some(format!("{error:#}")), true),
    };
    let found = match &proof.run {
        // They are new each night.
        Run::Simulation(seeds) => format!("{}: {found}", seeds.join(" ")),
        _ => found,
    };
    let seconds = began.elapsed().as_secs();
    Ended { proof: proof.name.clone(), at, seconds, found, wrong, is_unproven }
}

/// The exit code, and the document that the command has printed.
async fn output(proof: &Proof, Place { program, home, logs }: &Place) -> Result<(Option<i32>, Value)> {
    let log = logs.join(format!("{}.log", proof.name.replace([' ', '/', '='], "_")));
    let mut command = match &proof.run {
        Run::Alone(arguments) | Run::Judge(arguments, _) => {
            let mut command = Command::new(program);
            command.arg("--json").args(arguments);
            command
        }
        Run::Experiment(flaw) => {
            let mut command = Command::new(program);
            command.arg("sabotage").env("EXPERIMENT", flaw);
            command
        }
        Run::Simulation(arguments) => {
            let mut cargo = testbed::cargo();
            cargo.args(["run", "--quiet", "--bin", "simulation"]).args(testbed::profile_option());
            cargo.arg("--").args(arguments);
            cargo
        }
        Run::Test(arguments) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
    };
    if let Run::Judge(_, Some(mistake)) = proof.run {
        command.env("RELAY_MISTAKE", mistake);
    }
    command.env("DEMO_WITH", if *home == Home::Docker { "docker" } else { "local" });
    // The services are built.
    command.env("TESTBED_PREBUILT", "1").stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PROOF_DEADLINE, command.output()).await;
    let output = output.context("failed to end the command in time")?.context("failed to run the command")?;
    let text = [output.stderr, output.stdout.clone()].concat();
    fs::write(&log, text).with_context(|| format!("failed to write {}", log.display()))?;
    if let Run::Test(arguments) = &proof.run {
        let (stdout, name) =
            (String::from_utf8_lossy(&output.stdout), arguments.last().map_or("", String::as_str));
        let failed = stdout.lines().find(|line| line.contains(name) && line.ends_with("... FAILED"));
        // What cannot be built ends with the same exit code as a test that fails.
        ensure!(failed.is_some() || output.status.code() != Some(1), "no test failed");
        return Ok((output.status.code(), Value::from(failed.unwrap_or("no test failed"))));
    }
    let document = serde_json::from_slice(&output.stdout).ok();
    // The simulation and the experiments print for people.
    let last = || {
        String::from_utf8_lossy(&output.stdout).lines().rev().find(|line| !line.is_empty()).map(Value::from)
    };
    Ok((output.status.code(), document.or_else(last).unwrap_or_default()))
}

/// What a drill or the judge has found, in one line.
fn found(document: &Value) -> String {
    let drill = document["report"]["reason"].as_str().or(document.as_str()).map(str::to_owned);
    let breaches = document[0]["levels"][0]["breaches"].as_array().map(|breaches| {
        let promises: Vec<_> = breaches.iter().filter_map(|breach| breach["promise"].as_str()).collect();
        let mut distinct = promises.clone();
        distinct.sort_unstable();
        distinct.dedup();
        distinct.join(", ")
    });
    drill.or(breaches).unwrap_or_default()
}

fn list(proofs: &[Proof], terminal: &Terminal) -> Result<Verdict> {
    let kept = kept()?;
    let mut rows = vec![];
    for Proof { name, owner, .. } in proofs {
        let owner = format!("{owner:?}").to_lowercase();
        let last = kept.get(name);
        let result = match last {
            None => "not kept".to_owned(),
            Some(Ended { at, wrong: None, .. }) => format!("{at}  as it must be"),
            Some(Ended { at, wrong: Some(wrong), .. }) => format!("{at}  WRONG: {wrong}"),
        };
        terminal.print(format!("{name:<72}  {owner:<8}  {result}"));
        rows.push(json!({ "proof": name, "owner": owner, "last": last }));
    }
    let with_result = proofs.iter().filter(|proof| kept.contains_key(&proof.name)).count();
    terminal.print(format!("\n{} proofs, {with_result} with a result in {KEPT}", proofs.len()));
    terminal.document(&rows)?;
    Ok(Verdict::Held)
}
