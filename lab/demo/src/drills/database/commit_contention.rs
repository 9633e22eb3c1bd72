//! Sends as many orders as the service can accept, and samples which sessions wait for each other meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use crate::drills::drill::{Drill, Group, Subject};
use crate::drills::drill_run::DrillRun;
use crate::drills::report::{Fact, Refusals, Report};

pub(in crate::drills) const DRILL: Drill = Drill {
    name: "commit-contention",
    group: Group::Database,
    teaches: "A NOTIFY in the order's own transaction takes one lock for the whole server until the commit is on disk.",
    question: "64 clients place orders at the same time. How many of their commits wait for each other?",
    claim: "Orders that are placed at the same time do not queue up for each other's commits.",
    outage: LOAD_TIME,
    system: Subject::Running,
    run: |run| Box::pin(sample_commits(run)),
};

/// More than the service has connections to its database.
const CLIENTS: u32 = 64;
const LOAD_TIME: Duration = Duration::from_secs(8);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Counts the sessions that wait for the lock that PostgreSQL takes for a commit that notifies. There is one such lock
/// for the whole server, so it belongs to no database and to no object.
const QUEUE: &str = "select count(*)::text from pg_locks
    where not granted and locktype = 'object' and database = 0 and classid = 'pg_database'::regclass and objid = 0";

/// The sessions in which the services notify each other use the lock too, seldom: a few of them can meet.
const LONGEST_ALLOWED_QUEUE: u32 = 3;
/// With containers each sample starts a client, on a busy machine.
const MIN_SAMPLES: u32 = 3;
/// The faster the disk, the shorter a queue lasts, and the fewer samples show it. One alone proves nothing.
const MIN_QUEUES: u32 = 2;

async fn sample_commits(run: &DrillRun<'_>) -> Result<Report> {
    run.phase("saturate", format!("{CLIENTS} clients, each of which sends its next order at once"));
    let load = run.saturate(CLIENTS, LOAD_TIME);
    let (mut samples, mut queues, mut longest) = (0_u32, 0_u32, 0_u32);
    let end = Instant::now() + LOAD_TIME;
    while Instant::now() < end {
        let queue: u32 = run.system.read(QUEUE).await?.trim().parse().context("a sample is not a number")?;
        samples += 1;
        queues += u32::from(queue > LONGEST_ALLOWED_QUEUE);
        longest = longest.max(queue);
        sleep(SAMPLE_INTERVAL).await;
    }
    let summary = load.end().await?;
    let rate = summary.accepted_per_second();
    let facts = vec![
        Fact {
            what: format!("{} orders accepted, {rate:.0} per second", summary.accepted),
            observed: summary.accepted > u64::from(CLIENTS),
        },
        Fact {
            what: format!(
                "a queue for the lock of notifying commits in {queues} of {samples} samples; the longest: {longest}"
            ),
            observed: samples >= MIN_SAMPLES,
        },
    ];
    let mut report = run.report(facts, summary, Refusals::AreExpected).await?;
    if queues >= MIN_QUEUES {
        report.refute(format!(
            "commits queue up: in {queues} of {samples} samples more than {LONGEST_ALLOWED_QUEUE} sessions waited \
             for one lock"
        ));
    }
    Ok(report)
}
