//! Long names on the pages, for example of tests and of some metrics: each occurs in the sources.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result};
use pulldown_cmark::{Event, Options, Parser};

use crate::clone;

/// PostgreSQL's and RabbitMQ's own, of which nothing here makes use.
const OF_THE_SERVERS: [&str; 4] =
    ["max_slot_wal_keep_size", "pg_current_wal_lsn", "pg_logical_emit_message", "quorum_commands_soft_limit"];

/// The names on the pages that no source has, as lines to print, and how many were looked for.
pub(crate) fn unknown(root: &Path, pages: &[String]) -> Result<(Vec<String>, usize)> {
    let listed = clone::run(root, "git", ["ls-files", "--cached", "--others", "--exclude-standard"])?;
    // Files have names too.
    let mut known: BTreeSet<_> = words(&listed).filter(|word| is_name(word)).map(str::to_owned).collect();
    known.extend(OF_THE_SERVERS.map(str::to_owned));
    for file in listed.lines().filter(|file| !file.ends_with(".md") && root.join(file).is_file()) {
        // What is not text, for example a picture, has no names.
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        known.extend(words(&text).filter(|word| is_name(word)).map(str::to_owned));
    }
    let (mut unknown, mut checked) = (Vec::new(), 0);
    for page in pages {
        let markdown =
            fs::read_to_string(root.join(page)).with_context(|| format!("failed to read {page}"))?;
        for (event, range) in Parser::new_ext(&markdown, Options::ENABLE_TABLES).into_offset_iter() {
            let Event::Code(code) = event else { continue };
            for name in words(&code).filter(|word| is_name(word)) {
                checked += 1;
                if !known.contains(name) {
                    let line = markdown[..range.start].lines().count().max(1);
                    unknown.push(format!("{page}:{line}: no source has `{name}`"));
                }
            }
        }
    }
    Ok((unknown, checked))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

/// Whether a word is long enough to be a name that is meant as it stands: three underscores or more.
fn is_name(word: &str) -> bool {
    word.bytes().filter(|byte| *byte == b'_').count() >= 3
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !word.starts_with('_')
}
