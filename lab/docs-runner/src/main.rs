//! Runs the command blocks of the documentation, each page in a clone of the repository, and checks the links and the names
//! of tests and metrics.
//!
//! A page is Markdown. Its blocks of `sh` are run one after the other in one shell, as a reader would, its blocks of
//! `diff` are applied, and the lines that its blocks of `text` show must be in the real output. HTML comments, which
//! readers do not see, say what is run otherwise (`docs/development.md`).

mod clone;
mod links;
mod names;
mod page;
mod patches;
mod run;
mod script;
mod suite;

use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use crate::{
    clone::Clone,
    page::{Block, Content, How, Page, commands},
    run::{Outcome, outcome_without_run, run_page},
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
    #[arg(long, value_name = "K/N", value_parser = part)]
    part: Option<(usize, usize)>,
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

/// How many blocks ended in which way.
#[derive(Debug, Default)]
struct Counts {
    run: usize,
    by_ci: usize,
    not_run: usize,
    outputs: usize,
    failed: usize,
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
    let checkout = clone::run(Path::new("."), "git", ["rev-parse", "--show-toplevel"])?;
    let checkout = Path::new(checkout.trim());
    let listed =
        clone::run(checkout, "git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])?;
    let mut all: Vec<String> =
        listed.lines().map(str::to_owned).filter(|file| checkout.join(file).exists()).collect();
    all.dedup();

    let (broken, checked) = links::broken(checkout, &all)?;
    for link in &broken {
        println!("BROKEN  {link}");
    }
    let (unknown, looked_for) = names::unknown(checkout, &all)?;
    for name in &unknown {
        println!("UNKNOWN {name}");
    }

    let mut counts = Counts::default();
    let chosen =
        |page: &&String| options.pages.is_empty() || options.pages.iter().any(|one| page.starts_with(one));
    let mut pages = Vec::new();
    for path in all.iter().filter(chosen) {
        let markdown =
            fs::read_to_string(checkout.join(path)).with_context(|| format!("failed to read {path}"))?;
        let page = Page::parse(path, &markdown)?;
        if !page.blocks.is_empty() {
            pages.push((page, markdown));
        }
    }
    for wanted in &options.pages {
        ensure!(
            pages.iter().any(|(page, _)| page.path.starts_with(wanted)),
            "no page with blocks is {wanted}"
        );
    }
    let wrong = print_wrong(&pages, checkout, options.paste)?;
    let right = broken.is_empty() && unknown.is_empty() && wrong == 0;
    if options.list {
        pages.iter().for_each(|(page, _)| list(page));
        pages.clear();
    }
    let (first, step) = options.part.unwrap_or((0, 1));
    for (page, markdown) in pages.iter().filter(|(page, _)| page.is_run()).skip(first).step_by(step) {
        let path = &page.path;
        // The runs take half an hour, so what is wrong without them ends here.
        if !right {
            break;
        }
        println!("{path}");
        let began = Instant::now();
        let run = run_page(page, &Clone::of(checkout), checkout, options.limit)?;
        for (block, outcome) in page.blocks.iter().zip(&run.outcomes) {
            counts.add(outcome);
            print_outcome(block, outcome);
        }
        println!("  {:5.0} s  the page", began.elapsed().as_secs_f64());
        if options.paste {
            paste(&checkout.join(path), markdown, page, &run.shown)?;
        }
    }
    println!("{checked} links in {} pages, {} broken", all.len(), broken.len());
    println!("{looked_for} long names of tests and metrics, {} unknown", unknown.len());
    if !options.list && right {
        println!(
            "blocks: {} run, {} run by another step of CI, {} not run, {} outputs compared, {} failed",
            counts.run, counts.by_ci, counts.not_run, counts.outputs, counts.failed
        );
    }
    Ok(right && counts.failed == 0)
}

/// Prints what is wrong with the blocks before any is run, and counts it.
fn print_wrong(pages: &[(Page, String)], checkout: &Path, paste: bool) -> Result<usize> {
    let mut wrong = 0;
    for (page, markdown) in pages {
        for block in &page.blocks {
            if let Some(Outcome::Failed { why }) = outcome_without_run(&block.content, checkout)? {
                println!("WRONG   {}:{}: {why}", page.path, block.line);
                wrong += 1;
            }
        }
        let unfit = patches::unfit(page, checkout)?;
        for (line, why) in &unfit {
            println!("WRONG   {}:{line}: the change does not fit the code: {why}", page.path);
        }
        wrong += unfit.len();
        // `--paste` writes them.
        let stale = if paste { Vec::new() } else { page.stale_outputs(markdown) };
        for line in &stale {
            println!(
                "WRONG   {}:{line}: the page shows other lines than `shows` names: --paste writes them",
                page.path
            );
        }
        wrong += stale.len();
    }
    Ok(wrong)
}

impl Counts {
    fn add(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Ran { .. } => &mut self.run,
            Outcome::RunByCi { .. } => &mut self.by_ci,
            Outcome::NotRun { .. } => &mut self.not_run,
            Outcome::OutputIsThere => &mut self.outputs,
            Outcome::Failed { .. } | Outcome::NotReached => &mut self.failed,
        } += 1;
    }
}

fn print_outcome(block: &Block, outcome: &Outcome) {
    let what = first_command(block);
    match outcome {
        Outcome::Ran { after } => println!("  {:5.1} s  {:4}  {what}", after.as_secs_f64(), block.line),
        Outcome::RunByCi { file } => println!("    by CI  {:4}  {what}: {file}", block.line),
        Outcome::NotRun { reason } => println!("  not run  {:4}  {what}: {reason}", block.line),
        Outcome::OutputIsThere => println!("  as shown {:4}", block.line),
        Outcome::Failed { why } => println!("   FAILED  {:4}  {what}: {why}", block.line),
        Outcome::NotReached => println!("   FAILED  {:4}  {what}: a block before it failed", block.line),
    }
}

fn first_command(block: &Block) -> String {
    match &block.content {
        Content::Commands { text, .. } => commands(text).into_iter().next().unwrap_or_default(),
        Content::Patch { .. } => "(a change)".to_owned(),
        Content::Output { .. } => "(output)".to_owned(),
    }
}

fn list(page: &Page) {
    for block in &page.blocks {
        let how = match &block.content {
            Content::Commands { how: How::Here { .. }, .. } | Content::Patch { .. } => "run".to_owned(),
            Content::Commands { how: How::StaysRunning { until }, .. } => {
                format!("stays running until {until:?}")
            }
            Content::Commands { how: How::ByCi { file }, .. } => format!("run by {file}"),
            Content::Commands { how: How::PartOfTheSuite, .. } => "a part of the suite".to_owned(),
            Content::Commands { how: How::NotRun { reason }, .. } => format!("not run: {reason}"),
            Content::Output { .. } => continue,
        };
        println!("{}:{}  {}  ({how})", page.path, block.line, first_command(block));
    }
}

/// Writes the lines of the real output into the page, from its end to its beginning, so that positions stay true.
fn paste(file: &Path, markdown: &str, page: &Page, shown: &[(usize, Vec<String>)]) -> Result<()> {
    let mut text = markdown.to_owned();
    for (index, lines) in shown.iter().rev().filter(|(_, lines)| !lines.is_empty()) {
        if let Content::Output { range, .. } = &page.blocks[*index].content {
            text.replace_range(range.clone(), &format!("{}\n", lines.join("\n")));
        }
    }
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
