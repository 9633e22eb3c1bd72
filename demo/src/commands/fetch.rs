//! `demo fetch`: prints a page, for images without a tool of their own.

use anyhow::{Context as _, Result};

use crate::http;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// With `token_from`, the variable that holds an operator's token: it then never stands in a command line, where every
/// user of the machine could read it. A refusal is an answer too, so the status stands in the first line.
pub(crate) async fn run(
    url: &str,
    token_from: Option<&str>,
    post: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let Some(variable) = token_from else {
        terminal.say(http::get(url).await?);
        return Ok(Verdict::Held);
    };
    let token = std::env::var(variable).with_context(|| format!("{variable} is not set"))?;
    // Blocking: this process has nothing else to do meanwhile.
    let body = if post { std::io::read_to_string(std::io::stdin())? } else { String::new() };
    let (status, answer) = http::ask_admin(url, &token, post.then_some(&body)).await?;
    terminal.say(format!("{status}\n{answer}"));
    Ok(Verdict::Held)
}
