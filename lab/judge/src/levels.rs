//! The levels: each injects one kind of fault, and checks the promises that it threatens.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fault_proxy::{
    Direction::{Both, TowardClient, TowardUpstream},
    Effect,
};
use sqlx::{Connection as _, PgConnection};
use testbed::longer;
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    checks,
    entrant::Entrant,
    outbox::{TOO_LARGE, UNWANTED, WANTED, aggregates},
    stage::{BODY, CONFIRM, STOP_DEADLINE, Servers, Stage},
    standby::{self, Standby},
    verdict::{Breach, LevelResult, Promise, Verdict},
};

/// The levels by number, from 1.
pub const LEVELS: [&str; 14] = [
    "publish",
    "crash between publish and mark",
    "lost publish, confirm and commit answer",
    "order with two instances",
    "an event that nobody wants, and one too large",
    "broker away, database away",
    "late commit",
    "frozen instance",
    "a thousand failing events",
    "fail-over",
    "a commit that the standby never had",
    "a full queue",
    "a silent broker",
    "a silent database",
];

/// How long a relay may publish nothing after a fault while events are pending: longer than the leases and time-outs of most.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(30);
/// How long a fault may take to be felt.
const FAULT_DEADLINE: Duration = Duration::from_secs(10);
/// How soon a relay that does not wait for the confirm marks an event.
const MARK_DEADLINE: Duration = Duration::from_secs(1);
/// The same for one that marks after a while what has been sent.
const LATE_MARK_DEADLINE: Duration = Duration::from_secs(10);
/// How long an instance is held up while another could overtake it.
const HELD_UP: Duration = Duration::from_secs(5);
/// How long a relay may take to publish an event that it has read.
const READ_TO_PUBLISHED: Duration = Duration::from_secs(3);
/// The same on the levels on which a good relay is slow: it connects again after an outage with a long back-off, waits for a
/// time-out of the database before it takes over from a frozen instance, or tries a thousand events in vain.
const LONG_DEADLINE: Duration = Duration::from_secs(60);
/// The same where the other end of a connection falls silent: two heartbeats of a minute, the default of RabbitMQ.
const SILENT_DEADLINE: Duration = Duration::from_secs(120);
/// How long a level may take, and as long its beginning and its end.
const LEVEL_DEADLINE: Duration = Duration::from_secs(360);
/// What is broken for good also where a level was cut short.
const CERTAIN: [Promise; 5] = [
    Promise::OrderOfEachAggregate,
    Promise::SameIdInEachCopy,
    Promise::NoNeedlessCopies,
    Promise::BodyAsWritten,
    Promise::Persistent,
];
/// Longer than a relay lasts that gives an event up after five attempts, with five seconds between them.
const BROKER_AWAY: Duration = Duration::from_secs(40);
const DATABASE_AWAY: Duration = Duration::from_secs(5);
/// How many events wait when a fault comes, in each of its rounds: one, or a batch in flight.
const ROUNDS: [usize; 2] = [1, 400];
/// By how many events, and by what time, a commit is late: at first, and for a relay that looks back.
const LATENESS: [(usize, Duration); 2] = [(5, Duration::ZERO), (10_000, Duration::from_secs(60))];
/// Bytes of padding: nothing, more than a page of the database or a notification takes, and almost as much as a broker that takes
/// 128 KiB.
const SIZES: [usize; 3] = [0, 9_000, 120_000];
/// How many messages the full queue holds, and for how long it is full.
const FULL: (u32, Duration) = (100, Duration::from_secs(5));

/// Judges an entrant on one level. An error in the environment makes the result inconclusive.
pub async fn judge(servers: &Servers, entrant: &Entrant, level: u8) -> LevelResult {
    let name = level.checked_sub(1).and_then(|index| LEVELS.get(usize::from(index)));
    let mut result = LevelResult {
        level,
        name: name.copied().unwrap_or("no such level"),
        verdict: Verdict::Inconclusive,
        breaches: vec![],
        facts: vec![],
        copies: 0,
        restarts: 0,
        seconds: 0.0,
        error: None,
    };
    let began = Instant::now();
    let played = play(servers, entrant, level, &mut result).await;
    result.error = played.err().map(|error| format!("{error:#}"));
    result.seconds = began.elapsed().as_secs_f64();
    let all_felt = result.error.is_none() && result.facts.iter().all(|fact| fact.observed);
    result.verdict = match all_felt {
        _ if !result.breaches.is_empty() => Verdict::Broken,
        true => Verdict::Held,
        false => Verdict::Inconclusive,
    };
    result
}

async fn play(servers: &Servers, entrant: &Entrant, level: u8, result: &mut LevelResult) -> Result<()> {
    let deadline = longer(LEVEL_DEADLINE + 4 * entrant.deadline(Duration::ZERO));
    let stage = timeout(deadline, Stage::set_up(servers, entrant, &level.to_string())).await;
    let mut stage = stage.context("the level was not set up in time")??;
    let played = timeout(deadline, inject(&mut stage, level)).await;
    let is_late = played.is_err();
    let played = played.with_context(|| format!("the level did not end within {deadline:?}")).flatten();
    result.breaches = std::mem::take(&mut stage.breaches);
    let played = match played {
        Err(error) if !is_late => Err(error),
        played => {
            let checked = timeout(deadline, checks::all(&mut stage)).await.map_err(Into::into).flatten();
            checked.and_then(|mut breaches| {
                // What was cut short may be late, in a queue, or not yet recorded.
                breaches.retain(|breach| !is_late || CERTAIN.contains(&breach.promise));
                result.breaches.extend(breaches);
                played
            })
        }
    };
    result.facts = std::mem::take(&mut stage.facts);
    result.restarts = stage.restarts;
    result.copies = {
        let record = stage.arrivals.record();
        record.all.len() - record.first.len()
    };
    timeout(deadline, stage.tear_down()).await.context("the level was not cleared in time")??;
    played
}

async fn inject(stage: &mut Stage<'_>, level: u8) -> Result<()> {
    match level {
        1 => publish(stage).await,
        2 => crash(stage).await,
        3 => lost_answers(stage).await,
        4 => order(stage).await,
        5 => refused(stage).await,
        6 => servers_away(stage).await,
        7 => late_commit(stage).await,
        8 => frozen(stage).await,
        9 => failing(stage).await,
        10 => fail_over(stage).await,
        11 => never_replicated(stage).await,
        12 => full_queue(stage).await,
        13 => silent(stage, "broker-1").await,
        14 => silent(stage, "database-1").await,
        other => anyhow::bail!("there is no level {other}"),
    }
}

/// Level 1: events from before the start and from a steady load, small and large, arrive once and as they were written, and
/// rolled-back ones never.
async fn publish(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(10);
    stage.write(&aggregates, 50).await?;
    let sized = SIZES.map(|padding| stage.events.next(aggregates[0], WANTED, padding));
    stage.outbox.write(sized.into()).await?;
    stage.start(1).await?;
    for round in 0..40 {
        stage.write(&aggregates, 5).await?;
        if round % 10 == 0 {
            let never = stage.events.next(Uuid::new_v4(), WANTED, 0);
            let open = stage.outbox.begin(&never).await?;
            roll_back(open).await?;
        }
        stage.pass(Duration::from_millis(50)).await?;
    }
    stage.settle(PUBLISH_DEADLINE).await?;
    if !stage.terminate(1).await? {
        let what = format!("it ran for {STOP_DEADLINE:?} after SIGTERM");
        stage.breaches.push(Breach { promise: Promise::EndsWhenAsked, event: None, what });
    }
    Ok(())
}

/// Level 2: the relay is killed when the broker has an event and the relay does not know it, and when it has committed a mark.
async fn crash(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(10);
    let commit = stage.commit.clone();
    for count in ROUNDS {
        stage.start(1).await?;
        let waits = wait_for_confirm(stage, &aggregates, count, LATE_MARK_DEADLINE).await?;
        stage.felt(format!("killed when one of {count} events had arrived, and none was marked"), waits);
        stage.kill(1).await?;
        stage.clear("broker-1")?;
        stage.start(1).await?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }
        stage.kill(1).await?;

        // The first commit of a relay that marks before it publishes is its mark.
        stage.write(&aggregates, count).await?;
        let before = stage.reset_on("database-1", &commit, TowardClient)?;
        stage.launch(1)?;
        stage.until_reset("database-1", before, FAULT_DEADLINE).await?;
        stage.kill(1).await?;
        stage.clear("database-1")?;
        stage.start(1).await?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }
        stage.kill(1).await?;
    }
    Ok(())
}

/// Holds back the confirms of instance 1, and writes events. False: it marks one without a confirm.
async fn wait_for_confirm(
    stage: &mut Stage<'_>,
    aggregates: &[Uuid],
    count: usize,
    deadline: Duration,
) -> Result<bool> {
    // Its connection is open then: one that is opened now would wait, too.
    stage.write(aggregates, 1).await?;
    stage.settle(PUBLISH_DEADLINE).await?;
    stage.set("broker-1", Effect::BlackHole, TowardClient)?;
    let before = stage.outbox.committed.len();
    stage.write(aggregates, count).await?;
    let events: HashSet<_> = stage.outbox.committed[before..].iter().map(|(event, _)| event.id).collect();
    let has_arrived = async |stage: &mut Stage<'_>| Ok(events.iter().any(|event| stage.arrivals.has(*event)));
    let has_arrived = stage.until(stage.deadline(FAULT_DEADLINE), has_arrived).await?;
    let is_marked = async |stage: &mut Stage<'_>| Ok(!events.is_subset(&stage.outbox.pending().await?));
    Ok(has_arrived && !stage.until(deadline, is_marked).await?)
}

/// Level 3: a connection is reset before the broker has an event, before its confirm arrives, and before the answer to the commit
/// of a mark arrives.
async fn lost_answers(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(10);
    let commit = stage.commit.clone();
    stage.start(1).await?;
    for count in ROUNDS {
        let before = stage.reset_on("broker-1", BODY, TowardUpstream)?;
        stage.write(&aggregates, count).await?;
        let lost = stage.until_reset("broker-1", before, FAULT_DEADLINE).await?;
        stage.felt("a publish was lost", lost);
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }

        let before = stage.reset_on("broker-1", CONFIRM, TowardClient)?;
        stage.write(&aggregates, count).await?;
        let lost = stage.until_reset("broker-1", before, FAULT_DEADLINE).await?;
        stage.felt("a confirm was lost", lost);
        stage.clear("broker-1")?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }

        // While confirms are held back the relay commits no mark, so the next commit is one.
        wait_for_confirm(stage, &aggregates, count, MARK_DEADLINE).await?;
        let before = stage.reset_on("database-1", &commit, TowardClient)?;
        stage.clear("broker-1")?;
        let lost = stage.until_reset("database-1", before, FAULT_DEADLINE).await?;
        stage.felt("the answer to a commit was lost", lost);
        stage.clear("database-1")?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }
    }
    Ok(())
}

/// Level 4: two instances publish a backlog and a load; one is held up, then each is killed once, and the other goes on.
async fn order(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(20);
    stage.start(1).await?;
    stage.write(&aggregates, 20).await?;
    stage.settle(PUBLISH_DEADLINE).await?;
    // Instance 1 has begun with a backlog, and gets no confirm. Instance 2 has time to publish what comes later.
    stage.set("broker-1", Effect::BlackHole, TowardClient)?;
    stage.write(&aggregates, 400).await?;
    let has_begun = async |stage: &mut Stage<'_>| Ok(stage.arrivals.record().first.len() > 20);
    let has_begun = stage.until(stage.deadline(FAULT_DEADLINE), has_begun).await?;
    stage.felt("instance 1 was held up", has_begun);
    stage.start(2).await?;
    stage.pass(HELD_UP).await?;
    // Both work at the same time, and not at the same speed.
    stage.set("broker-1", Effect::Delay(Duration::from_millis(3)), TowardClient)?;
    for (killed, survivor) in [(1, 2), (2, 1)] {
        // In the middle of the work.
        let half = stage.outbox.committed.len() - 200;
        let has_half = async |stage: &mut Stage<'_>| Ok(stage.arrivals.record().first.len() >= half);
        stage.until_idle(PUBLISH_DEADLINE, has_half).await?;
        stage.kill(killed).await?;
        let last = stage.write(&aggregates, 100).await?;
        let has_last = async |stage: &mut Stage<'_>| Ok(stage.arrivals.has(last));
        let goes_on = stage.until_idle(PUBLISH_DEADLINE, has_last).await?;
        stage.felt(format!("instance {survivor} published alone"), goes_on);
        stage.launch(killed)?;
        stage.write(&aggregates, 400).await?;
    }
    let settled = stage.settle(PUBLISH_DEADLINE).await?;
    stage.felt("the last events arrived and were marked", settled);
    Ok(())
}

/// Level 5: within a batch, and between older and younger ones of its aggregate, is an event that no queue wants, then one that the
/// broker refuses as too large. In the end a queue wants the first.
async fn refused(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(10);
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    stage.settle(PUBLISH_DEADLINE).await?;
    // The broker closes the channel over one of them, and with it others.
    stage.fault();
    for (routing_key, padding) in [(UNWANTED, 0), (WANTED, TOO_LARGE)] {
        let own = [Uuid::new_v4()];
        let mut batch = stage.events.wanted(&aggregates, 20);
        batch.extend(stage.events.wanted(&own, 1));
        batch.push(stage.events.next(own[0], routing_key, padding));
        batch.extend(stage.events.wanted(&own, 2));
        // Beside each other, in one batch of a relay that sends one event of each aggregate at a time.
        batch.extend((0..30).map(|number| {
            let routing_key = if number % 3 == 0 { UNWANTED } else { WANTED };
            stage.events.next(Uuid::new_v4(), routing_key, 0)
        }));
        batch.extend(stage.events.wanted(&aggregates, 20));
        stage.outbox.write(batch).await?;
        stage.write(&aggregates, 10).await?;
        stage.settle(PUBLISH_DEADLINE).await?;
    }
    // What was published or given up too early is a breach whatever comes.
    let early = checks::all(stage).await?;
    stage.breaches.extend(early);
    if stage.breaches.is_empty() {
        stage.want_all().await?;
        stage.settle(LONG_DEADLINE).await?;
    }
    Ok(())
}

/// Level 6: the broker is killed in the middle of a batch, and again for longer, and comes back, then the database.
async fn servers_away(stage: &mut Stage<'_>) -> Result<()> {
    let (aggregates, servers) = (aggregates(10), stage.servers);
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    stage.settle(PUBLISH_DEADLINE).await?;

    let last = stage.write(&aggregates, 400).await?;
    stage.kill_broker().await?;
    let was_under_way = stage.outbox.pending().await?.contains(&last);
    stage.felt("the broker died before the last event was marked", was_under_way);
    broker_returns(stage).await?;
    if !stage.settle(LONG_DEADLINE).await? {
        return Ok(());
    }

    stage.kill_broker().await?;
    let event = stage.write(&aggregates, 20).await?;
    stage.pass(BROKER_AWAY).await?;
    let was_away = !stage.arrivals.has(event);
    stage.felt("the broker was away", was_away);
    broker_returns(stage).await?;
    if !stage.settle(LONG_DEADLINE).await? {
        return Ok(());
    }

    servers.postgres.kill().await?;
    stage.pass(DATABASE_AWAY).await?;
    let was_away = stage.outbox.pending().await.is_err();
    stage.felt("the database was away", was_away);
    servers.postgres.start().await?;
    stage.write(&aggregates, 20).await?;
    stage.settle(LONG_DEADLINE).await.map(drop)
}

/// Starts the broker. The relay is cut off until the queue works again: RabbitMQ 3.10 may never confirm what is published while a
/// queue recovers.
async fn broker_returns(stage: &mut Stage<'_>) -> Result<()> {
    stage.set("broker-1", Effect::Cut, Both)?;
    let before = stage.arrivals.record().begun;
    stage.servers.rabbitmq.first().start().await?;
    let consumes = async |stage: &mut Stage<'_>| Ok(stage.arrivals.record().begun > before);
    let is_back = stage.until(PUBLISH_DEADLINE, consumes).await?;
    ensure!(is_back, "the judge's queue did not come back with the broker: run the level again");
    stage.clear("broker-1")
}

/// Level 7: a transaction that began early commits late, when later events are published. Another one's commit waits: the log
/// shows it before its event is visible.
async fn late_commit(stage: &mut Stage<'_>) -> Result<()> {
    stage.start(1).await?;
    for (count, time) in LATENESS {
        let late = stage.events.next(Uuid::new_v4(), WANTED, 0);
        let never = stage.events.next(Uuid::new_v4(), WANTED, 0);
        let open = stage.outbox.begin(&late).await?;
        let rolled_back = stage.outbox.begin(&never).await?;
        let (aggregates, began) = (aggregates(50), Instant::now());
        let mut last = late.id;
        for _ in 0..count.div_ceil(500) {
            last = stage.write(&aggregates, count.min(500)).await?;
        }
        let has_last = async |stage: &mut Stage<'_>| Ok(stage.arrivals.has(last));
        let overtaken = stage.until_idle(PUBLISH_DEADLINE, has_last).await?;
        stage.felt(format!("{count} later events were published before the commit"), overtaken);
        stage.pass(time.saturating_sub(began.elapsed())).await?;
        stage.outbox.commit(open, late).await?;
        roll_back(rolled_back).await?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }
        let waiting = stage.events.next(Uuid::new_v4(), WANTED, 0);
        standby::commit_slowly(stage, waiting).await?;
        if !stage.settle(PUBLISH_DEADLINE).await? {
            break;
        }
    }
    Ok(())
}

/// Level 8: an instance is frozen while it waits for a confirm; another takes over; the first wakes up.
async fn frozen(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(3);
    stage.start(1).await?;
    let waits = wait_for_confirm(stage, &aggregates, 400, MARK_DEADLINE).await?;
    stage.felt("frozen while events waited for their confirms", waits);
    stage.freeze(1)?;
    stage.clear("broker-1")?;
    stage.start(2).await?;
    stage.write(&aggregates, 9).await?;
    if stage.settle(LONG_DEADLINE).await? {
        stage.thaw(1)?;
        stage.write(&aggregates, 9).await?;
        stage.settle(PUBLISH_DEADLINE).await?;
    }
    Ok(())
}

/// Level 9: a thousand events that no queue wants are older than the good ones.
async fn failing(stage: &mut Stage<'_>) -> Result<()> {
    let bad: Vec<_> = (0..1_000).map(|_| stage.events.next(Uuid::new_v4(), UNWANTED, 0)).collect();
    let ids: HashSet<_> = bad.iter().map(|event| event.id).collect();
    stage.outbox.write(bad).await?;
    stage.start(1).await?;
    for _ in 0..10 {
        stage.write(&aggregates(5), 5).await?;
        stage.pass(Duration::from_millis(300)).await?;
    }
    stage.settle(LONG_DEADLINE).await?;
    let still_fail = !stage.outbox.pending().await?.is_disjoint(&ids);
    stage.felt("the failing events were pending", still_fail);
    Ok(())
}

/// Level 10: the primary dies while events are pending, and its synchronous standby takes over.
async fn fail_over(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(5);
    let standby = Standby::start(stage).await?;
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    if !stage.settle(PUBLISH_DEADLINE).await? {
        return Ok(());
    }
    // A frozen relay leaves them pending.
    stage.freeze(1)?;
    let event = stage.write(&aggregates, 20).await?;
    standby.take_over(stage).await?;
    let are_pending = stage.outbox.pending().await?.contains(&event);
    stage.felt("events were pending when the standby took over", are_pending);
    stage.thaw(1)?;
    stage.restart(1).await?;
    stage.write(&aggregates, 20).await?;
    stage.settle(PUBLISH_DEADLINE).await.map(drop)
}

/// Level 11: an event is visible at the primary, and its standby has never had it. Then the primary dies.
async fn never_replicated(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(5);
    let standby = Standby::start(stage).await?;
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    if !stage.settle(PUBLISH_DEADLINE).await? {
        return Ok(());
    }
    let event = stage.events.next(Uuid::new_v4(), WANTED, 0);
    let visible = standby.commit_without(stage, &event).await?;
    // A relay that makes sure that the standby has what it publishes waits in a commit.
    let was_read = async |stage: &mut Stage<'_>| {
        Ok(stage.arrivals.has(event.id) || standby.relay_waits(stage, &visible).await?)
    };
    let was_read = stage.until(stage.deadline(PUBLISH_DEADLINE), was_read).await?;
    stage.felt("the relay has read the event", was_read);
    let has_arrived = async |stage: &mut Stage<'_>| Ok(stage.arrivals.has(event.id));
    stage.until(longer(READ_TO_PUBLISHED), has_arrived).await?;
    standby.take_over(stage).await?;
    stage.restart(1).await?;
    stage.write(&aggregates, 20).await?;
    stage.settle(PUBLISH_DEADLINE).await.map(drop)
}

/// Level 12: the queue is full, so the broker answers with `basic.nack`, event by event.
async fn full_queue(stage: &mut Stage<'_>) -> Result<()> {
    let aggregates = aggregates(10);
    let (messages, time) = FULL;
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    stage.settle(PUBLISH_DEADLINE).await?;
    stage.limit_queue(Some(messages)).await?;
    let last = stage.write(&aggregates, 400).await?;
    stage.pass(time).await?;
    let was_refused = stage.outbox.pending().await?.contains(&last);
    stage.felt("the last events were refused", was_refused);
    stage.limit_queue(None).await?;
    stage.settle(LONG_DEADLINE).await.map(drop)
}

/// Levels 13 and 14: in the middle of a batch, what answers at the other end of the relay's connections freezes, and the
/// connections stay open. New ones work.
async fn silent(stage: &mut Stage<'_>, route: &str) -> Result<()> {
    let aggregates = aggregates(10);
    stage.start(1).await?;
    stage.write(&aggregates, 10).await?;
    stage.settle(PUBLISH_DEADLINE).await?;
    let last = stage.write(&aggregates, 400).await?;
    stage.silence(route)?;
    let was_under_way = stage.outbox.pending().await?.contains(&last);
    stage.felt("the connections fell silent before the last event was marked", was_under_way);
    stage.write(&aggregates, 20).await?;
    stage.settle(SILENT_DEADLINE).await.map(drop)
}

async fn roll_back(mut open: PgConnection) -> Result<()> {
    sqlx::raw_sql("rollback").execute(&mut open).await?;
    Ok(open.close().await?)
}
