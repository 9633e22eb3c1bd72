//! `kill -9` of the owner, and what is left a few seconds later: nothing.
//!
//! The owner is this very test executable, started again with `OWNER` set: it starts two servers, says where they
//! are, and waits to be killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::{Postgres, Rabbitmq, eventually};

/// Runs as a test of its own too, and is then over at once: it is the body of the child process.
#[tokio::test]
async fn owner() -> Result<()> {
    if std::env::var_os("OWNER").is_none() {
        return Ok(());
    }
    let (postgres, rabbitmq) = tokio::try_join!(Postgres::private(), Rabbitmq::private())?;
    // The worst moment: stopped processes notice nothing by themselves.
    postgres.pause().await?;
    println!("\nSERVERS {} {}", postgres.admin_url("postgres"), rabbitmq.base_url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn listens(url: &str) -> bool {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap_or_default();
    TcpStream::connect(address).is_ok()
}

/// Processes and containers whose command line or name carries the owner's process id, which is part of every
/// directory and name that the testbed makes.
fn remains(owner: u32) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for command in [["ps", "-A", "-o", "args="].as_slice(), &["docker", "ps", "-a", "--format", "{{.Names}}"]]
    {
        let Ok(output) = Command::new(command[0]).args(&command[1..]).output() else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = |line: &&str| {
            ["postgres", "rabbitmq"].iter().any(|name| line.contains(&format!("{name}-{owner}-")))
        };
        found.extend(text.lines().filter(ours).map(str::to_owned));
    }
    Ok(found)
}

#[tokio::test]
async fn servers_are_gone_after_their_owner_was_killed() -> Result<()> {
    let mut owner = Command::new(std::env::current_exe()?);
    owner.args(["owner", "--exact", "--nocapture", "--test-threads=1"]).env("OWNER", "1");
    let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = owner.stdout.take().context("no output")?;
    let said = BufReader::new(stdout).lines().map_while(Result::ok).find(|line| line.starts_with("SERVERS "));
    let said = said.context("the owner did not start its servers")?;
    let urls: Vec<&str> = said.split_whitespace().skip(1).collect();
    assert!(urls.len() == 2 && urls.iter().all(|url| listens(url)), "not running: {urls:?}");
    assert!(!remains(owner.id())?.is_empty(), "the search for remains finds nothing even while they run");

    // SIGKILL: no destructor, no signal handler.
    owner.kill()?;
    let pid = owner.id();
    owner.wait()?;
    eventually("the servers to be gone", Duration::from_secs(20), async || {
        let left = remains(pid)?;
        anyhow::ensure!(left.is_empty(), "still there: {left:#?}");
        Ok((!urls.iter().any(|url| listens(url))).then_some(()))
    })
    .await
}
