//! `demo fetch`: prints a page. For health checks inside containers, whose image has no other HTTP client.

use anyhow::Result;

use crate::Verdict;
use crate::http;
use crate::terminal::Terminal;

pub(crate) async fn run(url: &str, terminal: &Terminal) -> Result<Verdict> {
    terminal.print(http::get(url).await?);
    Ok(Verdict::Held)
}
