//! The product's own SQL statements, read from the checkout's `.sqlx` directory.
//!
//! Each `.sqlx/query-*.json` holds one statement that the product's code checks at compile time. CI compares these files
//! with the code. A benchmark that takes its statements from them cannot measure an outdated copy.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Every statement of the product that is checked at compile time.
pub(crate) struct ProductSql {
    statements: Vec<Statement>,
}

/// One statement, with parameters `$1`, `$2`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    text: String,
    /// The parameters' types, with the names that sqlx gives them: `Int8`, `TextArray`.
    parameter_types: Vec<String>,
}

impl ProductSql {
    /// Reads the statements of the checkout that this executable was built from, or of the current directory's.
    pub(crate) fn read() -> Result<Self> {
        let root = testbed::workspace_root().context(
            "failed to find the product's statements: neither this executable nor the current directory is in a checkout",
        )?;
        Self::read_from(&root.join(".sqlx"))
    }

    fn read_from(dir: &Path) -> Result<Self> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("failed to read {}", dir.display()))?;
        let mut statements = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let file = std::fs::read(&path)?;
                let statement = Statement::parse(&file);
                statements.push(statement.with_context(|| format!("failed to read {}", path.display()))?);
            }
        }
        ensure!(
            !statements.is_empty(),
            "failed to find the product's statements: {} is empty",
            dir.display()
        );
        Ok(Self { statements })
    }

    /// Finds the one statement that contains all `fragments`. Line breaks and indentation count as one space.
    ///
    /// # Errors
    /// When no statement contains them, or more than one does.
    pub(crate) fn find(&self, fragments: &[&str]) -> Result<&Statement> {
        let matches = |statement: &&Statement| {
            let text = on_one_line(&statement.text);
            fragments.iter().all(|fragment| text.contains(fragment))
        };
        let found: Vec<&Statement> = self.statements.iter().filter(matches).collect();
        match found.as_slice() {
            [statement] => Ok(statement),
            several => bail!(
                "failed to find a statement of the product: {} statements in .sqlx contain {fragments:?}, not one",
                several.len()
            ),
        }
    }
}

impl Statement {
    fn parse(file: &[u8]) -> Result<Self> {
        let file: serde_json::Value = serde_json::from_slice(file)?;
        let text = file["query"].as_str().context("it has no `query`")?.to_owned();
        let types = file["describe"]["parameters"]["Left"].as_array().context("it has no parameter types")?;
        // A type of the schema's own is an object there; no statement that is bound here has one.
        let name = |kind: &serde_json::Value| kind.as_str().map_or_else(|| kind.to_string(), str::to_owned);
        Ok(Self { text, parameter_types: types.iter().map(name).collect() })
    }

    /// The text, with its parameters, for a prepared statement whose parameters have these types.
    pub(crate) fn prepared(&self, types: &[&str]) -> Result<&str> {
        ensure!(
            self.parameter_types == types,
            "failed to bind a statement of the product: its parameters are {:?} and not {types:?}",
            self.parameter_types
        );
        Ok(&self.text)
    }

    /// Replaces each `$n` by the n-th SQL expression, in parentheses. Each expression comes with its parameter's type.
    ///
    /// An expression may be a literal, or contain variables of pgbench. The types are compared with those that sqlx
    /// recorded, so that a parameter which the product adds or moves is an error and not a wrong measurement.
    pub(crate) fn bind(&self, values: &[(&str, &str)]) -> Result<String> {
        let types: Vec<&str> = values.iter().map(|(kind, _)| *kind).collect();
        let mut rest = self.prepared(&types)?;
        let mut bound = String::with_capacity(rest.len() * 2);
        while let Some(first) = rest.chars().next() {
            let quoted = quoted_length(rest);
            let digits = rest[first.len_utf8()..].bytes().take_while(u8::is_ascii_digit).count();
            let length = if quoted > 0 {
                bound.push_str(&rest[..quoted]);
                quoted
            } else if first == '$' && digits > 0 {
                let number: usize = rest[1..=digits].parse()?;
                let value = number.checked_sub(1).and_then(|index| values.get(index));
                let (_, value) =
                    value.with_context(|| format!("failed to bind ${number}: it has no value"))?;
                bound.extend(["(", value, ")"]);
                1 + digits
            } else {
                bound.push(first);
                first.len_utf8()
            };
            rest = &rest[length..];
        }
        Ok(bound)
    }

    /// Cuts the part `, name as (insert into TABLE …)` out of a `with` statement.
    ///
    /// # Errors
    /// When the statement does not have exactly one such part, or refers to it elsewhere.
    pub(crate) fn without_insert_into(&self, table: &str) -> Result<Self> {
        let text = cut_insert_into(&self.text, table).with_context(|| {
            format!("failed to cut `insert into {table}` out of a statement of the product")
        })?;
        Ok(Self { text, parameter_types: self.parameter_types.clone() })
    }
}

fn cut_insert_into(text: &str, table: &str) -> Result<String> {
    let insert = format!("insert into {table} ");
    let (before, after) = text.split_once(&insert).context("it has no such part")?;
    ensure!(!after.contains(&insert), "it has several such parts");
    let shape = "the part does not have the form `, name as (insert …)`";
    let head = before.trim_end().strip_suffix('(').context(shape)?.trim_end();
    let head = head.strip_suffix(" as").context(shape)?.trim_end();
    let is_in_a_name = |character: char| character.is_alphanumeric() || character == '_';
    let (head, name) = head.split_at(head.trim_end_matches(is_in_a_name).len());
    let head = head.trim_end().strip_suffix(',').context(shape)?;
    let tail = &after[closing_parenthesis(after).context("the part has no end")? + 1..];
    let names = |text: &str| text.split(|character| !is_in_a_name(character)).any(|word| word == name);
    ensure!(!name.is_empty() && !names(head) && !names(tail), "another part refers to `{name}`");
    Ok(format!("{head}{tail}"))
}

/// Finds the `)` that closes a parenthesis which was opened before `text`.
fn closing_parenthesis(text: &str) -> Option<usize> {
    let (mut at, mut open) = (0, 1_usize);
    while let Some(first) = text[at..].chars().next() {
        let quoted = quoted_length(&text[at..]);
        match first {
            '(' => open += 1,
            ')' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(at);
        }
        at += if quoted > 0 { quoted } else { first.len_utf8() };
    }
    None
}

/// Returns the length of the string, the quoted name or the comment that `text` begins with, or 0.
fn quoted_length(text: &str) -> usize {
    for (start, end) in [("'", "'"), ("\"", "\""), ("--", "\n"), ("/*", "*/")] {
        if let Some(rest) = text.strip_prefix(start) {
            return rest.find(end).map_or(text.len(), |at| start.len() + at + end.len());
        }
    }
    0
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "product_sql_tests.rs"]
mod tests;
