//! Each consumer's rate at applying waiting messages.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::Instances;

use crate::{
    report::{Report, Rounds},
    rig::{Rig, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The messages that wait in each queue at the beginning of a turn, about.
    #[arg(long, default_value_t = 50_000)]
    events: u32,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Compares numbers of partitions, in one process and in two. Only RabbitMQ 4 divides them between processes.
    #[arg(long)]
    partitions: bool,
}

/// The processes of each consumer. The first has the service's name.
const CONSUMERS: [[&str; 2]; 2] = [["inventory", "inventory-2"], ["billing", "billing-2"]];

/// Partitions, and processes that share them. The first is what the others are compared with.
const DIVISIONS: [(u8, usize); 5] = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)];

/// The number of partitions is the same for as long as a broker has queues, so each turn has its own servers.
pub(crate) async fn run(mut options: Options, setup: &Setup) -> anyhow::Result<Report> {
    if setup.smoke {
        options = Options { events: 2_000, rounds: 1, ..options };
    }
    let divisions = if options.partitions { &DIVISIONS[..] } else { &DIVISIONS[..1] };
    let (mut rounds, mut last) = (Rounds::default(), None);
    for round in 1..=options.rounds {
        let mut undivided = [f64::NAN; CONSUMERS.len()];
        for (partitions, processes) in divisions.iter().copied() {
            eprintln!("round {round} of {}: {partitions} partitions, {processes} processes", options.rounds);
            let rig = Rig::start_with(setup, async |system| {
                system.setup = std::mem::take(&mut system.setup).with_partitions(partitions);
                system.setup.instances =
                    Instances { inventory: processes, billing: processes, ..Instances::default() };
                Ok(())
            })
            .await?;
            rig.warm_up().await?;
            // Without stock a long backlog is cancelled.
            rig.administer("update inventory.stock set on_hand = 1000000000").await?;
            let consumers = CONSUMERS.each_ref().map(|names| &names[..processes]);
            rig.stop_services(&consumers.concat()).await?;
            // Real orders: the transactions of two partitions wait for each other if their events have a lane in common.
            let mut events = 0;
            while events < options.events {
                events += u32::try_from(rig.saturate(16, Duration::from_secs(1)).await?.accepted)?;
            }
            let mut auditor = PgConnection::connect(&rig.urls.of("auditor")).await?;
            testbed::eventually("all events to be published", Duration::from_secs(120), async || {
                let pending = "select count(*) from orders.outbox where published_at is null";
                let pending: i64 = sqlx::query_scalar(pending).fetch_one(&mut auditor).await?;
                Ok((pending == 0).then_some(()))
            })
            .await?;
            for (names, undivided) in consumers.into_iter().zip(&mut undivided) {
                let name = names[0];
                let turn = apply(&rig, &mut auditor, names, events).await;
                let turn = turn.with_context(|| format!("failed to measure {name}"))?;
                let what = format!("{name}, partitions: {partitions}, processes: {processes}");
                rounds.add(&what, "events/s", turn.per_second);
                rounds.add(format!("{what}: events per transaction, mean"), "events", turn.per_group);
                match (partitions, processes) {
                    (1, 1) => *undivided = turn.per_second,
                    _ => rounds.add(format!("{what} : one partition"), "ratio", turn.per_second / *undivided),
                }
            }
            last = Some(rig);
        }
    }
    let events = options.events;
    let notes = vec![
        format!(
            "about {events} events of real orders wait in the queues of each service; one of the two consumes at a time"
        ),
        "the rate is taken from processed_at, from the end of the first group to the last".into(),
        "inventory's transactions wait for each other's commits where orders want the same product".into(),
    ];
    last.context("no round was run")?.finish("consumer", rounds, notes).await
}

struct Turn {
    per_second: f64,
    per_group: f64,
}

/// Starts the processes of one consumer, waits until they have applied all messages, and stops them.
async fn apply(
    rig: &Rig,
    auditor: &mut PgConnection,
    processes: &[&str],
    events: u32,
) -> anyhow::Result<Turn> {
    let name = processes[0];
    let before: String =
        sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut *auditor).await?;
    let count = format!("select count(*) from {name}.processed_events where processed_at > $1::timestamptz");
    for process in processes {
        rig.system.start_again(process).await?;
    }
    // A rate below a hundred a second is a failure of another kind.
    let deadline = Duration::from_secs(30) + Duration::from_millis(10) * events;
    testbed::eventually("all events to be applied", deadline, async || {
        // Not more often, because counting takes time on the cores that do the work.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let applied: i64 =
            sqlx::query_scalar(AssertSqlSafe(count.clone())).bind(&before).fetch_one(&mut *auditor).await?;
        Ok((applied >= i64::from(events)).then_some(()))
    })
    .await?;
    rig.stop_services(processes).await?;

    // `xmin` is the transaction that recorded an event: one for each group. A consumer begins with single messages, until
    // one was not delivered several times before. So counting begins where its first group of several ends.
    let (applied, per_second, per_group): (i64, f64, f64) = sqlx::query_as(AssertSqlSafe(format!(
        "with groups as (
             select count(*) as events, max(processed_at) as ended
             from {name}.processed_events where processed_at > $1::timestamptz group by xmin::text
         ), first as (select min(ended) as ended from groups where events > 1)
         select sum(events)::bigint,
                (sum(events) filter (where groups.ended > first.ended))::float8
                    / extract(epoch from max(groups.ended) - min(first.ended))::float8,
                avg(events)::float8
         from groups, first"
    )))
    .bind(&before)
    .fetch_one(auditor)
    .await
    .context("there are too few events: all were applied in one group")?;
    ensure!(applied == i64::from(events), "{applied} of {events} events were applied");
    Ok(Turn { per_second, per_group })
}
