//! Rare states that a soak has to reach. What its verdict says about one that it never reached is worth nothing.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::running_system::RunningSystem;

/// A state, and how often it was reached.
#[derive(Debug, Serialize)]
pub(crate) struct Reached {
    pub(crate) state: &'static str,
    pub(crate) times: u64,
    /// Whether a soak of this length has to reach it.
    pub(crate) expected: bool,
}

/// What shows that a state was reached.
enum Sign {
    /// Each of these processes has logged this text. The smallest count counts.
    Log(&'static [&'static str], &'static str),
    /// One of these processes logs this text.
    AnyLog(&'static [&'static str], &'static str),
    /// The query counts it.
    Row(&'static str),
}

use Sign::{AnyLog, Log, Row};

const MINUTE: u64 = 60;
/// Three rounds of all faults.
const ROUNDS: u64 = 10 * MINUTE;

/// The states, the seconds after which each is expected, and their signs.
const STATES: [(&str, u64, Sign); 10] = [
    ("a copy of an event was dropped", MINUTE, Log(&["inventory"], "duplicate dropped")),
    ("a standby took over, and gave back", ROUNDS, Log(&["inventory", "inventory-2"], "event applied")),
    ("a payment was asked for twice under one key", ROUNDS, Log(&["provider"], "first answer repeated")),
    (
        "an event was set aside behind a dead letter",
        MINUTE,
        AnyLog(&["billing", "billing-2"], "behind a dead letter"),
    ),
    (
        "an answer came to a cancelled order",
        MINUTE,
        Row("select count(*)::text from orders.answers join orders.orders on orders.id = order_id
         where applied_at > cancelled_at and event_type in ('StockReserved', 'PaymentCaptured')"),
    ),
    ("a refused event waited by itself", ROUNDS, Log(&["orders"], "event refused; the relay will retry")),
    ("marks failed", ROUNDS, Log(&["orders"], "No space left on device")),
    ("commits hung", ROUNDS, Log(&["inventory"], "commits wait for a synchronous standby")),
    ("a subscription was cancelled", ROUNDS, Log(&["inventory"], "cancelled the subscription")),
    ("a lost session was replaced", ROUNDS, Log(&["orders"], "the database answers again")),
];

/// Counts how often a soak of this length has reached each state.
pub(super) async fn count(system: &RunningSystem, soaked: Duration) -> Result<Vec<Reached>> {
    let mut reached = vec![];
    for (state, seconds, sign) in STATES {
        let times = match sign {
            Row(query) => system.read(query).await?.trim().parse()?,
            Log(processes, text) | AnyLog(processes, text) => {
                let logs = system.processes()?.logs();
                let counts = processes.iter().map(|process| {
                    let path = logs.join(format!("{process}.log"));
                    let log =
                        File::open(&path).with_context(|| format!("failed to read {}", path.display()))?;
                    let lines = BufReader::new(log).split(b'\n').map_while(Result::ok);
                    Ok(lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count() as u64)
                });
                let counts = counts.collect::<Result<Vec<u64>>>()?.into_iter();
                if matches!(sign, AnyLog(..)) { counts.sum() } else { counts.min().unwrap_or_default() }
            }
        };
        reached.push(Reached { state, times, expected: soaked.as_secs() >= seconds });
    }
    Ok(reached)
}
