//! No server, container or directory is left after `kill -9` of the process that started it, the owner.
//!
//! The owner is this test executable, started again with `OWNER` set: it starts two servers, prints their addresses,
//! and waits until it is killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::{Postgres, Rabbitmq, eventually};

/// The body of the child process. Without `OWNER` it does nothing, because the test runner runs it as a test too.
#[tokio::test]
async fn owner() -> Result<()> {
    if std::env::var_os("OWNER").is_none() {
        return Ok(());
    }
    let (postgres, rabbitmq) = tokio::try_join!(Postgres::private(), Rabbitmq::private())?;
    // The hardest case: a stopped process does not notice that its owner has ended.
    postgres.pause().await?;
    println!("\nSERVERS {} {}", postgres.admin_url("postgres"), rabbitmq.base_url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn listens(url: &str) -> bool {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap_or_default();
    TcpStream::connect(address).is_ok()
}

/// Lists the processes and containers of an owner. The testbed puts the owner's process id into every directory and
/// container name, and so into the command lines.
fn find_remains(owner: u32) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for command in [["ps", "-A", "-o", "args="].as_slice(), &["docker", "ps", "-a", "--format", "{{.Names}}"]]
    {
        let Ok(output) = Command::new(command[0]).args(&command[1..]).output() else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_remains = |line: &&str| {
            ["postgres", "rabbitmq"].iter().any(|name| line.contains(&format!("{name}-{owner}-")))
        };
        found.extend(text.lines().filter(is_remains).map(str::to_owned));
    }
    Ok(found)
}

#[tokio::test]
async fn servers_end_after_their_owner_is_killed() -> Result<()> {
    let mut owner = Command::new(std::env::current_exe()?);
    owner.args(["owner", "--exact", "--nocapture", "--test-threads=1"]).env("OWNER", "1");
    let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = owner.stdout.take().context("the owner has no standard output")?;
    let line = BufReader::new(stdout).lines().map_while(Result::ok).find(|line| line.starts_with("SERVERS "));
    let line = line.context("the owner did not start its servers")?;
    let urls: Vec<&str> = line.split_whitespace().skip(1).collect();
    assert!(urls.len() == 2 && urls.iter().all(|url| listens(url)), "not running: {urls:?}");
    assert!(!find_remains(owner.id())?.is_empty(), "the search finds nothing although the servers run");

    // SIGKILL: no destructor and no signal handler runs.
    owner.kill()?;
    let pid = owner.id();
    owner.wait()?;
    eventually("the servers to end", Duration::from_secs(60), async || {
        let left = find_remains(pid)?;
        anyhow::ensure!(left.is_empty(), "still running: {left:#?}");
        Ok((!urls.iter().any(|url| listens(url))).then_some(()))
    })
    .await
}
