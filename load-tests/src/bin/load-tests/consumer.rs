//! Each consumer's rate at applying waiting messages.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::{
    backlog,
    bare_publisher::BarePublisher,
    report::{Figure, Report},
    rig::{Login, Rig, SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The messages that wait in each queue at the beginning of a turn.
    #[arg(long, default_value_t = 50_000)]
    events: u32,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

const CONSUMERS: [&str; 2] = ["inventory", "billing"];

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let template = rig.place().await?;
    rig.everything_applied().await?;
    rig.stop_services(&SERVICES).await?;
    let publisher = BarePublisher::connect(&rig.amqp_url()).await?;
    let mut orders = rig.connect(Login::Orders).await?;
    let mut auditor = rig.connect(Login::Auditor).await?;

    let (mut rates, mut sizes) = ([vec![], vec![]], [vec![], vec![]]);
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        let messages = backlog::fill(&mut orders, template, options.events).await?;
        backlog::clear(&mut orders).await?;
        publisher.empty_queues().await?;
        publisher.publish(&messages).await?;
        for (index, name) in CONSUMERS.into_iter().enumerate() {
            let turn = apply(&rig, &mut auditor, name, options.events).await;
            let (per_second, per_group) = turn.with_context(|| format!("failed to measure {name}"))?;
            rates[index].push(per_second);
            sizes[index].push(per_group);
            rig.stop_services(&[name]).await?;
        }
    }
    publisher.close().await?;

    let mut figures = Vec::new();
    for ((name, rates), sizes) in CONSUMERS.into_iter().zip(rates).zip(sizes) {
        figures.push(Figure::new(format!("{name}: recorded, applied, acknowledged"), "events/s", rates)?);
        figures.push(Figure::new(format!("{name}: events per transaction, mean"), "events", sizes)?);
    }
    let notes = vec![
        format!(
            "{} messages wait in each queue, bodies of real orders with two lines; one consumer runs at a time",
            options.events
        ),
        "the rate is taken from processed_at, from the end of the first group to the last".into(),
    ];
    rig.finish("consumer", figures, notes).await
}

/// Starts one consumer and waits until it has applied all messages. Returns the events per second and per transaction.
async fn apply(rig: &Rig, auditor: &mut PgConnection, name: &str, events: u32) -> anyhow::Result<(f64, f64)> {
    let before: String =
        sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut *auditor).await?;
    let count = format!("select count(*) from {name}.processed_events where processed_at > $1::timestamptz");
    rig.system.start_again(name).await?;
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
    Ok((per_second, per_group))
}
