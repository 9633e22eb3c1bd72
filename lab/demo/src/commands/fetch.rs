//! `demo fetch`: prints a page. For use inside containers, whose image has no other HTTP client.

use anyhow::{Context as _, Result};

use crate::http;
use crate::terminal::Terminal;
use crate::verdict::Verdict;

/// With `token_from`, sends a request to an admin API, and prints the status in the first line: a refusal is an answer
/// too. The variable of that name holds the token. On the command line every user of the machine could read it.
pub(crate) async fn run(
    url: &str,
    token_from: Option<&str>,
    post: bool,
    terminal: &Terminal,
) -> Result<Verdict> {
    let Some(variable) = token_from else {
        terminal.print(http::get(url).await?);
        return Ok(Verdict::Held);
    };
    let token = std::env::var(variable).with_context(|| format!("{variable} is not set"))?;
    // This blocks the thread. The process has nothing else to do.
    let body = if post { std::io::read_to_string(std::io::stdin())? } else { String::new() };
    let (status, answer) = http::admin_request(url, &token, post.then_some(&body)).await?;
    terminal.print(format!("{status}\n{answer}"));
    Ok(Verdict::Held)
}
