//! A page of the documentation: its fenced blocks, and what the comments before them say of how they are run.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A page, read from Markdown.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    pub(crate) markdown: String,
    /// What is run, shown or left out, in the order of the page.
    pub(crate) blocks: Vec<Block>,
    /// Its links and pictures, each with its line.
    pub(crate) links: Vec<(usize, String)>,
    /// What stands in its lines as code, each with its line.
    pub(crate) code: Vec<(usize, String)>,
}

/// A fenced block that is run, applied or compared.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    /// Its lines, as they are run.
    pub(crate) text: String,
    pub(crate) how: How,
}

#[derive(Debug)]
pub(crate) enum How {
    /// Commands in the shell of the page; the last one must end with this code.
    Run { exit_code: i32 },
    /// Commands in the background until the end of the page; the next block waits until the output has this text.
    StaysRunning { until: String },
    /// Commands that another step of CI runs: each is a line of this file.
    ByCi { file: String },
    /// Commands that are a part of CI's run of the whole suite.
    PartOfTheSuite,
    /// Commands that are not run, for this reason.
    NotRun { reason: String },
    /// A change of the code, applied with `git apply`.
    Patch,
    /// Lines of the output of the block before it.
    Output {
        /// Each occurs in a line of the output.
        texts: Vec<String>,
        /// Where the lines stand in the page, in bytes.
        range: Range<usize>,
    },
}

/// How a block ended.
pub(crate) enum Outcome {
    /// After so many seconds.
    Ran(u64),
    NotRunHere,
    /// The lines of the real output that the page shows.
    OutputIsThere(Vec<String>),
    Failed(String),
}

/// Comments before a block that say how it is run: see `docs/development.md`.
const COMMENTS: [&str; 7] =
    ["exit code", "stays running until", "run by CI", "part of the suite", "not run", "run as", "shows"];

/// The comments before a block, each with its value.
type Notes = Vec<(String, String)>;

impl Page {
    /// Reads the Markdown of a page.
    ///
    /// # Errors
    /// A comment before a block is not one of those that `docs/development.md` lists, or follows on nothing.
    pub(crate) fn parse(path: &str, markdown: &str) -> Result<Self> {
        let (mut blocks, mut links, mut inline, mut notes) = (vec![], vec![], vec![], Notes::new());
        let mut code: Option<(String, Range<usize>)> = None;
        for (event, range) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
            let line = markdown[..range.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push((line, dest_url.to_string()));
                }
                Event::Code(text) => inline.push((line, text.to_string())),
                Event::Html(html) => {
                    for (comment, _) in html.split("<!-- ").filter_map(|part| part.split_once(" -->")) {
                        let (key, value) = comment.split_once(": ").unwrap_or((comment, ""));
                        ensure!(COMMENTS.contains(&key), "{path}:{line}: unknown comment {key:?}");
                        notes.push((key.to_owned(), value.to_owned()));
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    // An empty block has no text: its lines would stand behind the opening fence.
                    let fence =
                        markdown[range.start..].find('\n').map_or(range.end, |end| range.start + end + 1);
                    code = Some((language.to_string(), fence..fence));
                }
                Event::Text(_) if code.is_some() => {
                    if let Some((_, lines)) = &mut code {
                        lines.end = range.end;
                    }
                }
                Event::End(TagEnd::CodeBlock) => {
                    let Some((language, lines)) = code.take() else { continue };
                    let block = Block::new(line, &language, markdown, lines, &std::mem::take(&mut notes));
                    blocks
                        .extend(block.with_context(|| format!("failed to read the block at {path}:{line}"))?);
                }
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
                _ => ensure!(
                    notes.is_empty(),
                    "{path}:{line}: a comment that steers a block stands before something else"
                ),
            }
        }
        let (path, markdown) = (path.to_owned(), markdown.to_owned());
        Ok(Self { path, markdown, blocks, links, code: inline })
    }

    /// Whether any of its blocks is run here.
    pub(crate) fn is_run(&self) -> bool {
        self.blocks.iter().any(Block::is_run)
    }

    /// The commands that the page runs to their end, as they are run.
    pub(crate) fn run_commands(&self) -> Vec<String> {
        let run = self.blocks.iter().filter(|block| matches!(block.how, How::Run { .. }));
        run.flat_map(|block| commands(&block.text)).collect()
    }

    /// The lines of the blocks of output that show something else than `shows` says, or not all of it.
    pub(crate) fn stale_outputs(&self) -> impl Iterator<Item = usize> {
        let stale = |block: &&Block| match &block.how {
            How::Output { texts, .. } => {
                let foreign = block.text.lines().any(|line| !texts.iter().any(|text| line.contains(text)));
                foreign || texts.iter().any(|text| !block.text.contains(text))
            }
            _ => false,
        };
        self.blocks.iter().filter(stale).map(|block| block.line)
    }
}

impl Block {
    /// Reads a block. `None`: it is neither run nor compared, for example a picture in a block of `text`.
    fn new(
        line: usize,
        language: &str,
        markdown: &str,
        range: Range<usize>,
        notes: &Notes,
    ) -> Result<Option<Self>> {
        let mut text = markdown[range.clone()].to_owned();
        let values = |wanted: &str| -> Vec<String> {
            let notes = notes.iter().filter(|(key, _)| key == wanted);
            notes.flat_map(|(_, value)| value.split("; ").map(str::to_owned)).collect()
        };
        let texts = values("shows");
        let shows = |(key, _): &(String, String)| key == "shows";
        ensure!(language == "text" || !notes.iter().any(shows), "`shows` belongs to a block of `text`");
        ensure!(language == "sh" || notes.iter().all(shows), "only a block of `sh` is run");
        for replacement in values("run as") {
            let (from, to) =
                replacement.split_once(" => ").context("a replacement has the form `old => new`")?;
            ensure!(text.contains(from), "the block has no {from:?}, which `run as` replaces");
            text = text.replace(from, to);
        }
        let mut steers = notes.iter().filter(|(key, _)| !["run as", "shows"].contains(&key.as_str()));
        let steer = steers.next().map(|(key, value)| (key.as_str(), value.clone()));
        ensure!(steers.next().is_none(), "two comments say how the block is run");
        let how = match (language, steer) {
            ("sh", None) => How::Run { exit_code: 0 },
            ("sh", Some(("exit code", code))) => {
                How::Run { exit_code: code.parse().context("failed to read the exit code")? }
            }
            ("sh", Some(("stays running until", until))) => How::StaysRunning { until },
            ("sh", Some(("run by CI", file))) => How::ByCi { file },
            ("sh", Some(("part of the suite", _))) => How::PartOfTheSuite,
            ("sh", Some((_, reason))) => How::NotRun { reason },
            ("diff", _) => How::Patch,
            ("text", _) if !texts.is_empty() => How::Output { texts, range },
            _ => return Ok(None),
        };
        Ok(Some(Self { line, text, how }))
    }

    /// The code with which its last command must end.
    pub(crate) fn exit_code(&self) -> i32 {
        if let How::Run { exit_code } = self.how { exit_code } else { 0 }
    }

    /// Whether it is run here, not compared, and not left to another step of CI.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self.how, How::Run { .. } | How::StaysRunning { .. } | How::Patch)
    }

    /// How it is named in what is printed.
    pub(crate) fn name(&self) -> String {
        match self.how {
            How::Patch => "(a change)".to_owned(),
            How::Output { .. } => "(output)".to_owned(),
            _ => commands(&self.text).into_iter().next().unwrap_or_default(),
        }
    }
}

/// The commands of a block: continued lines joined, comments and repeated spaces gone.
pub(crate) fn commands(text: &str) -> Vec<String> {
    text.replace("\\\n", " ")
        .lines()
        .map(|line| line.split(" #").next().unwrap_or_default())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}
