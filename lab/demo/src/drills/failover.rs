//! PostgreSQL has a standby: it takes over, it is lost, and commits that waited for it become visible without it.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::at_end::orders_were_refused;
use super::client::{RETRY_DEADLINE, RetriedOrder};
use super::drill::{Drill, Group, Subject};
use super::drill_run::DrillRun;
use super::felt::IN_FLIGHT;
use super::report::Refusals;
use crate::databases::{Databases, Replication};
use crate::own_system::OwnSystem;
use crate::reconciliation::Kind;

pub(super) static DRILLS: [Drill; 6] = [
    Drill {
        name: "database-failover-sync",
        teaches: "A commit that waits for the standby is on two disks before its 201. The promoted server waits for a standby too, \
                  until an operator changes that.",
        question: "The primary dies under load, and its synchronous standby takes over. Which acknowledged orders are gone?",
        claim: "After a fail-over to a synchronous standby every acknowledged order exists, with its effects, once. The services \
                find the new primary by themselves.",
        outage: Duration::from_secs(6),
        steps: Some(|run| Box::pin(fail_over_repeatedly(run))),
        at_end: &[orders_were_refused],
        ..ROW
    },
    Drill {
        name: "database-failover-async",
        teaches: "A fail-over to an asynchronous standby loses orders, and leaves phantoms: events whose order is gone.",
        question: "The standby is three seconds behind when the primary dies. What is lost, and what is there without a cause?",
        claim: "Nothing that was acknowledged is lost in a fail-over to an asynchronous standby. This is false, and the verdict \
                names what is missing and what has no cause.",
        outage: Duration::from_secs(3),
        system: Subject::Own(|| OwnSystem {
            standby: Some(Replication::Asynchronous),
            ..OwnSystem::default()
        }),
        steps: Some(|run| Box::pin(fail_over_too_early(run))),
        // What the standby never had is gone, and what others have made of it is left over. A cancellation may be delivered
        // again to a consumer that has forgotten the creation.
        breaks: &[Kind::Missing, Kind::Phantom, Kind::WrongSum, Kind::OutOfOrder],
        ..ROW
    },
    Drill {
        name: "sync-wait-cancelled",
        teaches: "A commit whose wait for the standby is cancelled is visible and not replicated. What rests on a read must \
                  wait for the standby too.",
        question: "An operator terminates sessions that wait for the standby. The client tries again with its key. Is the \
                   answer worth anything?",
        steps: Some(|run| Box::pin(lose_the_wait(run, End::Terminated))),
        ..LOST_WAIT
    },
    Drill {
        name: "sync-primary-restarted",
        teaches: "After a restart of the primary, commits that waited for the standby are visible, although the standby has never \
                  had them.",
        question: "The primary restarts while a commit waits for the standby, and dies for good later. Where is the order?",
        steps: Some(|run| Box::pin(lose_the_wait(run, End::Restarted))),
        ..LOST_WAIT
    },
    Drill {
        name: "old-primary-returns",
        teaches: "A primary that was only frozen comes back and accepts writes. Synchronous replication fences it: its commits \
                  wait for a standby that follows another server now.",
        question: "The primary freezes, the standby is promoted, and the old primary goes on. Who accepts orders?",
        claim: "An old primary that returns acknowledges nothing, because its commits wait. What was acknowledged is there, once.",
        outage: Duration::from_secs(5),
        steps: Some(|run| Box::pin(let_the_old_primary_return(run))),
        ..ROW
    },
    Drill {
        name: "standby-lost",
        teaches: "With one synchronous standby, its loss stops every commit. That is the price of losing nothing: watch for it.",
        question: "The only synchronous standby dies. What do clients, health and metrics say?",
        claim: "Without its standby the primary acknowledges no order; `/readyz` answers 503, a metric says why, and the \
                services leave few sessions at the server that wait. Then everything goes on, and no promise is broken.",
        outage: Duration::from_secs(60),
        steps: Some(|run| Box::pin(lose_the_standby(run))),
        at_end: &[orders_were_refused],
        ..ROW
    },
];

const ROW: Drill = Drill {
    group: Group::Database,
    system: Subject::Own(|| OwnSystem { standby: Some(Replication::Synchronous), ..OwnSystem::default() }),
    refusals: Refusals::AreExpected,
    ..Drill::ROW
};

/// What the drills share in which a commit becomes visible without the standby.
const LOST_WAIT: Drill = Drill {
    claim: "What only the primary has is not answered again, not published and not acknowledged, so a fail-over loses nothing \
            that a client or a service relies on.",
    outage: Duration::from_secs(8),
    ..ROW
};

/// Whether a commit waits for a standby at the primary.
const COMMIT_WAITS: &str = "select exists (select from pg_stat_activity where wait_event = 'SyncRep')::text";

/// The sessions whose commits wait. A client that gives such a commit up does not end its session.
const WAITING: &str = "select count(*)::text from pg_stat_activity where wait_event = 'SyncRep'";

/// The most of them, in an outage of any length: those that began before health said that commits hang. Of the API's sixteen
/// connections each may be one, and of the other pools a few.
const MAX_WAITING: u64 = 40;

/// `outage` is how long the load goes on before each fail-over.
async fn fail_over_repeatedly(run: &DrillRun<'_>) -> Result<()> {
    let databases = &run.system.own()?.databases;
    let mut slowest = Duration::ZERO;
    for number in 1..=run.times {
        sleep(run.outage).await;
        let killed = Instant::now();
        databases.primary().kill().await?;
        run.phase("outage", format!("fail-over {number} of {}: killed the primary with SIGKILL", run.times));
        databases.promote().await?;
        let promoted = SystemTime::now();
        run.phase("promote", "the standby is the primary; it has inherited `synchronous_standby_names`");
        if number == 1 {
            run.until_injected(
                "every commit at the new primary waits for a standby that there is not",
                async || Ok(run.system.read(COMMIT_WAITS).await? == "true"),
            )
            .await;
        }
        databases.wait_for_standby(false).await?;
        run.accepted_again(promoted).await;
        slowest = slowest.max(killed.elapsed());
        databases.renew_standby().await?;
        databases.wait_for_standby(true).await?;
        run.phase("recover", "the old primary follows as a new standby, and commits wait for it");
    }
    run.recovered_in(slowest);
    Ok(())
}

async fn fail_over_too_early(run: &DrillRun<'_>) -> Result<()> {
    let system = run.system.own()?;
    // Its events are on their way when the primary dies, as the events of a consumer with a separate database would be.
    system.processes.pause("inventory")?;
    system.databases.cut_link()?;
    let cut = SystemTime::now();
    run.phase("outage", "cut the standby off; inventory stands still, so that events are on their way");
    sleep(run.outage).await;
    let at_risk = run.accepted_since(cut);
    run.injected(format!("{at_risk} orders were accepted that the standby does not have"), at_risk > 0);
    let (killed, promoted) = fail_over(run, system.databases).await?;
    run.accepted_again(promoted).await;
    run.recovered_in(killed.elapsed());
    system.processes.resume("inventory")?;
    rejoin(system.databases).await
}

/// How the wait of a commit ends without the standby.
#[derive(Clone, Copy)]
enum End {
    Terminated,
    Restarted,
}

async fn lose_the_wait(run: &DrillRun<'_>, end: End) -> Result<()> {
    run.stop_load().await?;
    run.settled().await?;
    let databases = &run.system.own()?.databases;
    databases.cut_link()?;
    run.phase("outage", "cut the standby off: every commit waits for it");
    let order = RetriedOrder::new(run, Uuid::new_v4());
    let waits = run.until_injected("the commit of an order waits for the standby", async || {
        Ok(run.system.read(COMMIT_WAITS).await? == "true")
    });
    tokio::select! {
        // Its client waits too, and gives up.
        _ = order.place(RETRY_DEADLINE) => {}
        () = waits => {}
    }
    match end {
        End::Terminated => {
            let terminate =
                "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
            databases.execute_at(databases.primary(), terminate).await?;
            run.phase("cancelled", "terminated the sessions whose commits wait");
        }
        End::Restarted => {
            databases.primary().kill().await?;
            databases.primary().start().await?;
            run.phase("restarted", "killed the primary with SIGKILL, and started it again");
        }
    }
    run.until_injected("the order is visible, and the standby does not have it", async || {
        Ok(run.orders_of(order.customer).await? == 1)
    })
    .await;
    let published = run.published().await?;
    // For as long, whatever the answer is: the relay polls, and consumers get what it publishes.
    let (answer, ()) = tokio::join!(order.place_until(run.outage, run.outage), sleep(run.outage));
    run.promised("a retry with the same key was not answered", answer?.is_none());
    let published = run.published().await? - published;
    run.promised(format!("{published} events were published meanwhile"), published == 0.0);
    let (killed, _) = fail_over(run, databases).await?;
    let answer = order.place_until(RETRY_DEADLINE, RETRY_DEADLINE).await?;
    run.recovered_in(killed.elapsed());
    run.promised("a retry after the fail-over was answered", answer.is_some());
    rejoin(databases).await?;
    run.start_load()?;
    Ok(())
}

async fn let_the_old_primary_return(run: &DrillRun<'_>) -> Result<()> {
    let databases = &run.system.own()?.databases;
    let frozen = Instant::now();
    databases.primary().pause().await?;
    run.phase("outage", "stopped the primary with SIGSTOP");
    databases.promote().await?;
    let promoted = SystemTime::now();
    databases.wait_for_standby(false).await?;
    run.accepted_again(promoted).await;
    run.recovered_in(frozen.elapsed());
    let old = databases.standby()?;
    old.resume().await?;
    run.phase("returned", "the old primary goes on, and accepts connections");
    let write = databases.execute_at(old, "select pg_logical_emit_message(true, 'drill', 'late')");
    let waiting = run
        .until_injected("a commit at the old primary waits, although nothing is broken there", async || {
            Ok(databases.read_at(old, COMMIT_WAITS).await? == "true")
        });
    tokio::select! {
        written = write => {
            written?;
            run.promised("the old primary has not committed", false);
        }
        () = waiting => {}
    }
    sleep(run.outage).await;
    databases.renew_standby().await?;
    databases.wait_for_standby(true).await?;
    run.phase("recover", "the old primary follows as a new standby; what only it had is thrown away");
    Ok(())
}

async fn lose_the_standby(run: &DrillRun<'_>) -> Result<()> {
    let databases = &run.system.own()?.databases;
    let lost = Instant::now();
    databases.standby()?.kill().await?;
    run.phase("outage", "killed the standby with SIGKILL");
    run.until_promised("/readyz answers 503", async || Ok(run.system.health("orders").await?.0 == 503)).await;
    run.until_promised("`database_commits_hang` is 1: the alert CommitsHang", async || {
        Ok(run.system.metric("orders", "database_commits_hang").await? == 1.0)
    })
    .await;
    sleep(IN_FLIGHT).await;
    let acknowledged = run.wait_outage().await;
    let waiting: u64 = run.system.number(WAITING).await?;
    run.promised(format!("{acknowledged} orders were acknowledged meanwhile"), acknowledged == 0);
    run.promised(
        format!("{waiting} sessions wait for the standby, of at most {MAX_WAITING}"),
        waiting <= MAX_WAITING,
    );
    let started = SystemTime::now();
    databases.standby()?.start().await?;
    run.phase("recover", "started the standby again");
    run.accepted_again(started).await;
    run.recovered_in(lost.elapsed());
    Ok(())
}

/// Kills the primary, and lets the standby take over alone. Returns when that was, and when the new primary began to commit.
pub(super) async fn fail_over(run: &DrillRun<'_>, databases: &Databases) -> Result<(Instant, SystemTime)> {
    let killed = Instant::now();
    databases.primary().kill().await?;
    databases.promote().await?;
    let promoted = SystemTime::now();
    databases.wait_for_standby(false).await?;
    run.phase("promote", "killed the primary with SIGKILL, and promoted the standby");
    Ok((killed, promoted))
}

/// Lets the old primary follow the new one.
async fn rejoin(databases: &Databases) -> Result<()> {
    databases.restore_link()?;
    databases.renew_standby().await
}
