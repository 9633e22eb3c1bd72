//! A page of the documentation: its fenced blocks, and what the comments before them say of how they are run.

use std::ops::Range;

use anyhow::{Context as _, Result, bail, ensure};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A page, read from Markdown.
#[derive(Debug)]
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    /// What is run, shown or left out, in the order of the page.
    pub(crate) blocks: Vec<Block>,
}

/// A fenced block that is run, applied or compared.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// Shell commands (`sh`).
    Commands { text: String, how: How },
    /// A change of the code (`diff`), applied with `git apply`.
    Patch { text: String },
    /// Lines of the output of the commands before it (`text` with `shows`). Other `text` blocks are pictures.
    Output {
        /// Each occurs in a line of the output.
        texts: Vec<String>,
        /// Where the lines stand in the page, in bytes.
        range: Range<usize>,
    },
}

/// How a block of commands is run.
#[derive(Debug)]
pub(crate) enum How {
    /// In the shell of the page; the last command must end with this code.
    Here { exit_code: i32 },
    /// In the background until the end of the page; the next block waits until the output has this text.
    StaysRunning { until: String },
    /// By another step of CI: each command is a line of this file.
    ByCi { file: String },
    /// By CI's run of the whole suite, of which each command is a part.
    PartOfTheSuite,
    /// Not at all, for this reason.
    NotRun { reason: String },
}

impl Page {
    /// Reads the Markdown of a page.
    ///
    /// # Errors
    /// A comment before a block is not one of those that `docs/development.md` lists, or follows on nothing.
    pub(crate) fn parse(path: &str, markdown: &str) -> Result<Self> {
        let mut blocks = Vec::new();
        let mut notes = Notes::default();
        let mut code: Option<(String, usize, Range<usize>)> = None;
        for (event, range) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
            let line = markdown[..range.start].lines().count() + 1;
            match event {
                Event::Html(html) => notes
                    .add(&html)
                    .with_context(|| format!("failed to read the comment at {path}:{line}"))?,
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    // An empty block has no text: its lines would stand behind the opening fence.
                    let fence =
                        markdown[range.start..].find('\n').map_or(range.end, |end| range.start + end + 1);
                    code = Some((language.to_string(), line, fence..fence));
                }
                Event::Text(_) => {
                    if let Some((_, _, lines)) = &mut code {
                        lines.end = range.end;
                    }
                }
                Event::End(TagEnd::CodeBlock) => {
                    let Some((language, line, range)) = code.take() else { continue };
                    let notes = std::mem::take(&mut notes);
                    let content = notes
                        .content(&language, markdown, range)
                        .with_context(|| format!("failed to read the block at {path}:{line}"))?;
                    blocks.extend(content.map(|content| Block { line, content }));
                }
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
                _ if code.is_none() => ensure!(
                    notes.is_empty(),
                    "{path}:{line}: a comment that steers a block stands before something else"
                ),
                _ => {}
            }
        }
        Ok(Self { path: path.to_owned(), blocks })
    }

    /// Whether any of its blocks is run here.
    pub(crate) fn is_run(&self) -> bool {
        self.blocks.iter().any(|block| block.content.is_run())
    }

    /// The commands that the page runs, as they are run.
    pub(crate) fn run_commands(&self) -> Vec<String> {
        let run = self.blocks.iter().filter_map(|block| match &block.content {
            Content::Commands { text, how: How::Here { .. } } => Some(commands(text)),
            _ => None,
        });
        run.flatten().collect()
    }

    /// The lines of the blocks of output that show something else than `shows` says, or not all of it.
    pub(crate) fn stale_outputs(&self, markdown: &str) -> Vec<usize> {
        let stale = |block: &&Block| match &block.content {
            Content::Output { texts, range } => {
                let shown = &markdown[range.clone()];
                let foreign = shown.lines().any(|line| !texts.iter().any(|text| line.contains(text)));
                foreign || texts.iter().any(|text| !shown.contains(text))
            }
            _ => false,
        };
        self.blocks.iter().filter(stale).map(|block| block.line).collect()
    }
}

impl Content {
    /// Whether it is run here, not compared, and not left to another step of CI.
    pub(crate) fn is_run(&self) -> bool {
        match self {
            Self::Commands { how, .. } => matches!(how, How::Here { .. } | How::StaysRunning { .. }),
            Self::Patch { .. } => true,
            Self::Output { .. } => false,
        }
    }
}

/// The comments before a block.
#[derive(Debug, Default)]
struct Notes {
    how: Option<How>,
    replacements: Vec<(String, String)>,
    shows: Vec<String>,
}

impl Notes {
    fn is_empty(&self) -> bool {
        self.how.is_none() && self.replacements.is_empty() && self.shows.is_empty()
    }

    /// Adds what the comments of a line of HTML say, if they steer a block.
    fn add(&mut self, html: &str) -> Result<()> {
        for (comment, _) in html.split("<!-- ").filter_map(|part| part.split_once(" -->")) {
            self.add_comment(comment)?;
        }
        Ok(())
    }

    fn add_comment(&mut self, comment: &str) -> Result<()> {
        let (key, value) = comment.split_once(": ").unwrap_or((comment, ""));
        let how = match key {
            "exit code" => How::Here { exit_code: value.parse().context("failed to read the exit code")? },
            "stays running until" => How::StaysRunning { until: value.to_owned() },
            "run by CI" => How::ByCi { file: value.to_owned() },
            "part of the suite" => How::PartOfTheSuite,
            "not run" => How::NotRun { reason: value.to_owned() },
            "run as" => {
                for replacement in value.split("; ") {
                    let (from, to) =
                        replacement.split_once(" => ").context("a replacement has the form `old => new`")?;
                    self.replacements.push((from.to_owned(), to.to_owned()));
                }
                return Ok(());
            }
            "shows" => {
                self.shows.extend(value.split("; ").map(str::to_owned));
                return Ok(());
            }
            _ => bail!("unknown comment {key:?}"),
        };
        ensure!(self.how.replace(how).is_none(), "two comments say how the block is run");
        Ok(())
    }

    /// What the block is, or nothing if it is neither run nor compared.
    fn content(self, language: &str, markdown: &str, range: Range<usize>) -> Result<Option<Content>> {
        let mut text = markdown[range.clone()].to_owned();
        if language != "text" {
            ensure!(self.shows.is_empty(), "`shows` belongs to a block of `text`");
        }
        if language != "sh" {
            ensure!(self.how.is_none() && self.replacements.is_empty(), "only a block of `sh` is run");
        }
        Ok(match language {
            "sh" => {
                for (from, to) in self.replacements {
                    if !text.contains(&from) {
                        bail!("the block has no {from:?}, which `run as` replaces");
                    }
                    text = text.replace(&from, &to);
                }
                Some(Content::Commands { text, how: self.how.unwrap_or(How::Here { exit_code: 0 }) })
            }
            "diff" => Some(Content::Patch { text }),
            "text" if !self.shows.is_empty() => Some(Content::Output { texts: self.shows, range }),
            _ => None,
        })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

    use super::*;

    fn blocks(markdown: &str) -> Vec<Block> {
        Page::parse("page.md", markdown).unwrap().blocks
    }

    #[test]
    fn comments_before_a_block_say_how_it_is_run() {
        let found = blocks(
            "Text.\n\n<!-- exit code: 1 -->\n<!-- run as: 30s => 5s -->\n```sh\nwait 30s  # long\n```\n\n\
             <!-- shows: VERDICT; lost -->\n```text\nVERDICT\n```\n\n```text\na picture\n```\n",
        );
        assert_eq!(found.len(), 2, "a block of text without `shows` is not compared");
        let Content::Commands { text, how: How::Here { exit_code: 1 } } = &found[0].content else {
            panic!("{found:?}")
        };
        assert_eq!((found[0].line, commands(text)), (5, vec!["wait 5s".to_owned()]));
        let Content::Output { texts, .. } = &found[1].content else { panic!("{found:?}") };
        assert_eq!(texts, &["VERDICT", "lost"]);
    }

    #[test]
    fn a_comment_that_steers_nothing_is_refused() {
        for wrong in [
            "<!-- exit code: 1 -->\n\nText.\n",
            "<!-- run as: 30s => 5s -->\n```sh\nwait\n```\n",
            "<!-- not run: no reason -->\n<!-- exit code: 1 -->\n```sh\nwait\n```\n",
            "<!-- shows: line -->\n```sh\nwait\n```\n",
            "<!-- show: line -->\n```text\nline\n```\n",
        ] {
            assert!(Page::parse("page.md", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn continued_lines_are_one_command() {
        assert_eq!(commands("a \\\n    b   # why\n# only a comment\nc\n"), ["a b", "c"]);
    }
}
