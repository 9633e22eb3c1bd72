//! Runs the command blocks of the documentation, each page in a clone of the repository, and checks the links and the names
//! of tests and metrics.
//!
//! A page is Markdown. Its blocks of `sh` are run one after the other in one shell, as a reader would, its blocks of
//! `diff` are applied, and the lines that its blocks of `text` show must be in the real output. HTML comments, which
//! readers do not see, say what is run otherwise (`docs/development.md`).

mod links;
mod page;
mod run;
mod sources;

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use crate::{
    page::{Block, How, Outcome, Page},
    run::run_page,
};

/// Run the command blocks of the documentation, and check its links and names. Exit code 1: something failed.
#[derive(Debug, Parser)]
#[command(name = "docs-runner")]
struct Options {
    /// The pages, for example README.md or docs/labs. Without any: all of the repository.
    pages: Vec<String>,
    /// Run nothing: list the blocks, and how each is run.
    #[arg(long)]
    list: bool,
    /// Write the real output into the blocks that show it.
    #[arg(long)]
    paste: bool,
    /// Of these pages run only every Nth, beginning with number K from 0, for example 1/4. All are checked as far as that is
    /// possible without running them.
    #[arg(long, value_name = "K/N", value_parser = part, default_value = "0/1")]
    part: (usize, usize),
    /// How long the commands of one page may take together.
    #[arg(long, default_value = "20m", value_parser = humantime::parse_duration)]
    limit: Duration,
}

fn part(text: &str) -> Result<(usize, usize), &'static str> {
    let (number, of) = text.split_once('/').ok_or("K/N was expected")?;
    match (number.parse(), of.parse()) {
        (Ok(number), Ok(of)) if number < of => Ok((number, of)),
        _ => Err("K/N was expected, with K less than N"),
    }
}

fn main() -> ExitCode {
    match check(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("docs-runner: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Checks the pages and prints what was found. `false` if something failed.
fn check(options: &Options) -> Result<bool> {
    let checkout = sources::output_of(Path::new("."), "git", &["rev-parse", "--show-toplevel"])?;
    let checkout = Path::new(checkout.trim());
    let read = |path: &String| {
        let markdown = fs::read_to_string(checkout.join(path));
        Page::parse(path, &markdown.with_context(|| format!("failed to read {path}"))?)
    };
    let all = sources::files(checkout, ".md")?.iter().map(read).collect::<Result<Vec<_>>>()?;
    let is_wanted = |page: &&Page| {
        options.pages.is_empty() || options.pages.iter().any(|wanted| page.path.starts_with(wanted))
    };
    let pages: Vec<_> = all.iter().filter(|page| !page.blocks.is_empty()).filter(is_wanted).collect();
    for wanted in &options.pages {
        let found = pages.iter().any(|page| page.path.starts_with(wanted));
        ensure!(found, "no page with blocks is {wanted}");
    }

    let (broken, links) = links::broken(checkout, &all);
    let (unknown, names) = sources::unknown_names(checkout, &all)?;
    let mut wrong = Vec::new();
    for page in &pages {
        wrong.extend(wrong_blocks(page, checkout, options.paste)?);
    }
    for (label, found) in [("BROKEN ", &broken), ("UNKNOWN", &unknown), ("WRONG  ", &wrong)] {
        found.iter().for_each(|line| println!("{label} {line}"));
    }
    if options.list {
        pages.iter().copied().for_each(list);
    }
    // The runs take half an hour, so what is wrong without them ends here.
    let right = broken.is_empty() && unknown.is_empty() && wrong.is_empty();
    let mut counts = [0; 5];
    if right && !options.list {
        let (first, step) = options.part;
        for page in pages.iter().filter(|page| page.is_run()).skip(first).step_by(step) {
            run(page, checkout, options, &mut counts)?;
        }
    }
    println!("{links} links in {} pages, {} broken", all.len(), broken.len());
    println!("{names} long names of tests and metrics, {} unknown", unknown.len());
    let [run, by_ci, not_run, outputs, failed] = counts;
    if right && !options.list {
        println!(
            "blocks: {run} run, {by_ci} run by another step of CI, {not_run} not run, {outputs} outputs compared, {failed} failed"
        );
    }
    Ok(right && failed == 0)
}

/// What is wrong with a page's blocks before any is run, as lines to print.
fn wrong_blocks(page: &Page, checkout: &Path, paste: bool) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for block in &page.blocks {
        wrong.extend(sources::not_in_ci(block, checkout)?.map(|why| (block.line, why)));
    }
    for (line, why) in sources::unfit_changes(page, checkout)? {
        wrong.push((line, format!("the change does not fit the code: {why}")));
    }
    // `--paste` writes them.
    if !paste {
        let why = "the page shows other lines than `shows` names: --paste writes them";
        wrong.extend(page.stale_outputs().map(|line| (line, why.to_owned())));
    }
    Ok(wrong.into_iter().map(|(line, why)| format!("{}:{line}: {why}", page.path)).collect())
}

/// Runs a page, prints how its blocks ended, and counts them: run, by CI, not run, compared, failed.
fn run(page: &Page, checkout: &Path, options: &Options, counts: &mut [usize; 5]) -> Result<()> {
    println!("{}", page.path);
    let began = Instant::now();
    let outcomes = run_page(page, checkout, options.limit)?;
    for (block, outcome) in page.blocks.iter().zip(&outcomes) {
        let (Block { line, .. }, what) = (block, block.name());
        let (counted, text) = match (outcome, &block.how) {
            (Outcome::Ran(seconds), _) => (0, format!("{seconds:5} s  {line:4}  {what}")),
            (Outcome::NotRunHere, How::ByCi { file }) => (1, format!("  by CI  {line:4}  {what}: {file}")),
            (Outcome::NotRunHere, How::NotRun { reason }) => {
                (2, format!("not run  {line:4}  {what}: {reason}"))
            }
            (Outcome::NotRunHere, _) => (1, format!("  by CI  {line:4}  {what}: a part of the suite")),
            (Outcome::OutputIsThere(_), _) => (3, format!("as shown {line:4}")),
            (Outcome::Failed(why), _) => (4, format!(" FAILED  {line:4}  {what}: {why}")),
        };
        counts[counted] += 1;
        println!("  {text}");
    }
    println!("  {:5.0} s  the page", began.elapsed().as_secs_f64());
    if options.paste {
        paste(&checkout.join(&page.path), page, &outcomes)?;
    }
    Ok(())
}

fn list(page: &Page) {
    for block in &page.blocks {
        let how = match &block.how {
            How::Run { .. } | How::Patch => "run".to_owned(),
            How::StaysRunning { until } => format!("stays running until {until:?}"),
            How::ByCi { file } => format!("run by {file}"),
            How::PartOfTheSuite => "a part of the suite".to_owned(),
            How::NotRun { reason } => format!("not run: {reason}"),
            How::Output { .. } => continue,
        };
        println!("{}:{}  {}  ({how})", page.path, block.line, block.name());
    }
}

/// Writes the lines of the real output into the page, from its end to its beginning, so that positions stay true.
fn paste(file: &Path, page: &Page, outcomes: &[Outcome]) -> Result<()> {
    let mut text = page.markdown.clone();
    for (block, outcome) in page.blocks.iter().zip(outcomes).rev() {
        if let (How::Output { range, .. }, Outcome::OutputIsThere(lines)) = (&block.how, outcome) {
            text.replace_range(range.clone(), &format!("{}\n", lines.join("\n")));
        }
    }
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
