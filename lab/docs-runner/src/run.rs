//! One page, run in the clone: every block, its end, and whether the output is what the page shows.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    clone::Clone,
    page::{Block, Content, How, Page, commands},
    script::script,
    suite,
};

/// How long the processes of a page get to end by themselves after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(30);

/// How a block ended.
pub(crate) enum Outcome {
    Ran {
        after: Duration,
    },
    RunByCi {
        file: String,
    },
    NotRun {
        reason: String,
    },
    OutputIsThere,
    Failed {
        why: String,
    },
    /// An earlier block of the page failed.
    NotReached,
}

/// The page's blocks, each with its outcome, and the lines that belong into its blocks of output.
pub(crate) struct PageRun {
    pub(crate) outcomes: Vec<Outcome>,
    /// For the block of this index, the lines of the real output that have one of its texts.
    pub(crate) shown: Vec<(usize, Vec<String>)>,
}

/// Runs a page. `limit` is for the whole page.
pub(crate) fn run_page(page: &Page, clone: &Clone, checkout: &Path, limit: Duration) -> Result<PageRun> {
    let outputs = checkout.join("target/docs-runner/outputs").join(page.path.replace('/', "-"));
    if outputs.exists() {
        fs::remove_dir_all(&outputs).context("failed to delete the outputs of an earlier run")?;
    }
    fs::create_dir_all(&outputs).context("failed to make the directory for outputs")?;
    write_blocks(page, &outputs)?;
    let mut run =
        PageRun { outcomes: page.blocks.iter().map(|_| Outcome::NotReached).collect(), shown: Vec::new() };
    if page.is_run() {
        clone.renew()?;
        run_script(page, clone, &outputs, limit, &mut run.outcomes)?;
    }
    let mut output: Option<String> = None;
    for (index, block) in page.blocks.iter().enumerate() {
        if let Some(outcome) = outcome_without_run(&block.content, checkout)? {
            output = None;
            run.outcomes[index] = outcome;
            continue;
        }
        match &block.content {
            Content::Commands { .. } | Content::Patch { .. } => {
                let file = outputs.join(format!("{index}.out"));
                output = fs::read_to_string(&file).ok().map(|text| clean(&text, clone));
            }
            Content::Output { texts, .. } => {
                let Some(output) = &output else { continue };
                let absent: Vec<_> = texts.iter().filter(|text| !output.contains(*text)).collect();
                run.outcomes[index] = if absent.is_empty() {
                    Outcome::OutputIsThere
                } else {
                    Outcome::Failed { why: format!("the output has no line with {absent:?}") }
                };
                if absent.is_empty() {
                    let lines = output.lines().filter(|line| texts.iter().any(|text| line.contains(text)));
                    run.shown.push((index, lines.map(|line| line.trim_end().to_owned()).collect()));
                }
            }
        }
    }
    Ok(run)
}

/// How a block ends that this program does not run. `None`: it is run here, or compared.
pub(crate) fn outcome_without_run(content: &Content, checkout: &Path) -> Result<Option<Outcome>> {
    let Content::Commands { text, how } = content else { return Ok(None) };
    Ok(match how {
        How::ByCi { file } => Some(run_by_ci(checkout, file, text)?),
        How::PartOfTheSuite => Some(match suite::unknown_part(checkout, text)? {
            None => Outcome::RunByCi { file: "a part of the suite".to_owned() },
            Some(why) => Outcome::Failed { why },
        }),
        How::NotRun { reason } => Some(Outcome::NotRun { reason: reason.clone() }),
        How::Here { .. } | How::StaysRunning { .. } => None,
    })
}

/// Writes the files that the script sources, applies and searches for.
fn write_blocks(page: &Page, outputs: &Path) -> Result<()> {
    for (index, Block { content, .. }) in page.blocks.iter().enumerate() {
        let (Content::Commands { text, .. } | Content::Patch { text }) = content else { continue };
        fs::write(outputs.join(format!("{index}.sh")), text).context("failed to write a block")?;
        if let Content::Commands { how: How::StaysRunning { until }, .. } = content {
            fs::write(outputs.join(format!("{index}.until")), until).context("failed to write a block")?;
        }
    }
    Ok(())
}

/// Runs the page's script in a process group of its own, and ends all of it.
fn run_script(
    page: &Page,
    clone: &Clone,
    outputs: &Path,
    limit: Duration,
    outcomes: &mut [Outcome],
) -> Result<()> {
    let path = outputs.join("page.bash");
    fs::write(&path, script(page)).context("failed to write the page's script")?;
    let mut child = Command::new("bash")
        .arg(&path)
        .arg(outputs)
        .current_dir(&clone.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("failed to start bash")?;
    let stdout = child.stdout.take().context("bash has no standard output")?;
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let running = follow(&lines, Instant::now() + limit, outputs, page, outcomes);
    end(&mut child, running.is_some())?;
    if let Some(index) = running {
        let why = format!("it ran when the page's {} were over", humantime::format_duration(limit));
        outcomes[index] = Outcome::Failed { why };
    }
    stop_what_is_left(&clone.directory)
}

/// Notes how each block ends, until the script does or the deadline is over. Returns the block that ran at that time.
fn follow(
    lines: &Receiver<String>,
    deadline: Instant,
    outputs: &Path,
    page: &Page,
    outcomes: &mut [Outcome],
) -> Option<usize> {
    let mut running: Option<(usize, Instant)> = None;
    loop {
        let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            // A block whose commands failed ended the script, which did not get to print its end.
            Err(RecvTimeoutError::Disconnected) => {
                if let Some((index, _)) = running {
                    outcomes[index] = Outcome::Failed { why: last_lines(outputs, index, "a command failed") };
                }
                return None;
            }
            Err(RecvTimeoutError::Timeout) => return running.map(|(index, _)| index),
        };
        let mut words = line.split(' ');
        let event = words.next().unwrap_or_default();
        let Some(index) = words.next().and_then(|word| word.parse::<usize>().ok()) else { continue };
        if event == "begin" {
            running = Some((index, Instant::now()));
        } else if let Some((_, began)) = running.take() {
            let code = words.next().unwrap_or_default();
            outcomes[index] = if code == expected_code(&page.blocks[index]) {
                Outcome::Ran { after: began.elapsed() }
            } else {
                Outcome::Failed { why: last_lines(outputs, index, &format!("exit code {code}")) }
            };
        }
    }
}

fn expected_code(block: &Block) -> String {
    match &block.content {
        Content::Commands { how: How::Here { exit_code }, .. } => exit_code.to_string(),
        _ => "0".to_owned(),
    }
}

/// Ends the script with all that it started, in the foreground or behind an `&`, frozen processes too. Blocks that stay
/// running have groups of their own, which the script itself ends.
fn end(child: &mut Child, time_is_over: bool) -> Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a process without an id")?;
    // If its output is at its end, it ends by itself.
    let mut deadline = Instant::now() + if time_is_over { Duration::ZERO } else { END_LIMIT };
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    while child.try_wait().context("failed to wait for bash")?.is_none() {
        if Instant::now() > deadline {
            let signal = signals.next().ok_or_else(|| anyhow!("bash did not end after SIGKILL"))?;
            // Gone in between is what is wanted.
            let _ = kill_process_group(group, signal);
            deadline = Instant::now() + END_LIMIT;
        }
        #[allow(clippy::disallowed_methods, reason = "there is no runtime here")]
        thread::sleep(Duration::from_millis(50));
    }
    // What a failed page has left. A group without processes is what is wanted.
    let _ = kill_process_group(group, Signal::KILL);
    Ok(())
}

/// Stops a system that a page has left running, as after a failure.
fn stop_what_is_left(clone: &Path) -> Result<()> {
    let demo: PathBuf = clone.join("target/debug/demo");
    if clone.join("target/demo/state.json").exists() && demo.exists() {
        // The system's processes may be frozen.
        let down = Command::new("timeout")
            .arg("120")
            .arg(demo)
            .arg("down")
            .current_dir(clone)
            .stdout(Stdio::null())
            .status();
        let down = down.context("failed to stop what the page has left running")?;
        ensure!(down.success(), "failed to stop what the page has left running: {down}");
    }
    Ok(())
}

/// Whether each command of the block is in the file, which another step of CI runs.
fn run_by_ci(checkout: &Path, file: &str, text: &str) -> Result<Outcome> {
    let text_of_file =
        fs::read_to_string(checkout.join(file)).with_context(|| format!("failed to read {file}"))?;
    // Of another page only what is run there counts.
    let run = if file.ends_with(".md") {
        Page::parse(file, &text_of_file)?.run_commands()
    } else {
        commands(&text_of_file)
    };
    let absent = commands(text).into_iter().find(|command| !run.contains(command));
    Ok(match absent {
        None => Outcome::RunByCi { file: file.to_owned() },
        Some(command) => Outcome::Failed { why: format!("{file} has no line `{command}`") },
    })
}

/// What a block printed, with the clone's path made short and without what a terminal shows only for a moment.
fn clean(output: &str, clone: &Clone) -> String {
    let lines = output.lines().map(|line| line.rsplit('\r').next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n").replace(&format!("{}/", clone.directory.display()), "")
}

fn last_lines(outputs: &Path, index: usize, why: &str) -> String {
    let text = fs::read_to_string(outputs.join(format!("{index}.out"))).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    format!("{why}; the end of its output:\n{}", lines[lines.len().saturating_sub(25)..].join("\n"))
}
