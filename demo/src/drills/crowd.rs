//! As many orders as the service can take, and a look at who waits for whom meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::Drill;
use super::report::{Fact, Refusals, Report};
use super::stage::Stage;

pub(super) const DRILL: Drill = Drill {
    name: "crowd",
    claim: "Orders that are placed at the same time do not queue up for each other's commits.",
    run: |stage| Box::pin(run(stage)),
};

/// Each with its next order as soon as the last one is answered. More than the service has connections to its database.
const CLIENTS: u32 = 64;
const FOR: Duration = Duration::from_secs(8);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Who waits for the lock that PostgreSQL takes over a commit that notifies: one for the whole server, and so of no database
/// and of no object.
const QUEUE: &str = "select count(*)::text from pg_locks
    where not granted and locktype = 'object' and database = 0 and classid = 'pg_database'::regclass and objid = 0";

/// The services' own notifiers use it as well, each in one session and seldom: two of them may meet.
const NO_QUEUE: u32 = 3;
/// In containers each look starts a client, on a machine that is busy.
const ENOUGH_LOOKS: u32 = 3;
/// The faster the disk, the shorter the queue lasts, and the fewer looks see it. Without a cause none does.
const ENOUGH_QUEUES: u32 = 2;

async fn run(stage: &Stage<'_>) -> Result<Report> {
    stage.phase("crowd", format!("{CLIENTS} clients, each with its next order at once"));
    let load = stage.crowd(CLIENTS, FOR);
    let (mut looks, mut queues, mut longest) = (0_u32, 0_u32, 0_u32);
    let end = Instant::now() + FOR;
    while Instant::now() < end {
        let queue: u32 = stage.shop.read(QUEUE).await?.trim().parse().context("not a count")?;
        looks += 1;
        queues += u32::from(queue > NO_QUEUE);
        longest = longest.max(queue);
        sleep(BETWEEN_LOOKS).await;
    }
    let summary = load.end().await?;
    let rate = summary.accepted as f64 / summary.took.as_secs_f64();
    let facts = vec![
        Fact {
            what: format!("{} orders accepted, {rate:.0} a second", summary.accepted),
            observed: summary.accepted > u64::from(CLIENTS),
        },
        Fact {
            what: format!(
                "a queue for the lock of notifying commits in {queues} of {looks} looks; the longest: {longest}"
            ),
            observed: looks >= ENOUGH_LOOKS,
        },
    ];
    let mut report = stage.count(facts, summary, Refusals::AreExpected).await?;
    if queues >= ENOUGH_QUEUES {
        report.refute(format!(
            "commits queue up: in {queues} of {looks} looks more than {NO_QUEUE} sessions waited for one lock"
        ));
    }
    Ok(report)
}
