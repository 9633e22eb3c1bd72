//! The relay's rate at publishing a backlog, beside the rate of a bare publisher with the same messages in memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use sqlx::{Connection as _, PgConnection};

use crate::{
    backlog,
    bare_publisher::{BarePublisher, IN_FLIGHT},
    report::{Report, Rounds},
    rig::{Rig, SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The backlog of each round.
    #[arg(long, default_value_t = 50_000)]
    events: u32,
    /// How often each is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// The connections of the bare publisher. Its best rate is the limit: with one, a relay that has two can be faster.
const CONNECTIONS: [usize; 3] = [1, 2, 4];

pub(crate) async fn run(mut options: Options, setup: &Setup) -> anyhow::Result<Report> {
    if setup.smoke {
        options = Options { events: 3_000, rounds: 1 };
    }
    let rig = Rig::start(setup).await?;
    let template = rig.place().await?;
    rig.everything_applied().await?;
    // The queues are declared and have no consumer: both sides fill the same queues, and nothing else runs.
    rig.stop_services(&SERVICES).await?;
    let url = rig.rabbitmq.url();
    let bare = try_join_all((0..CONNECTIONS[2]).map(|_| BarePublisher::connect(&url))).await?;
    let mut database = PgConnection::connect(&rig.urls.of("orders")).await?;

    let mut rounds = Rounds::default();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        // The same bodies for the bare publisher, read before any clock runs.
        let messages = backlog::fill(&mut database, template, options.events).await?;
        bare[0].empty_queues().await?;
        let (per_second, per_step) = drain(&rig, &mut database, options.events).await?;
        rig.stop_services(&["orders"]).await?;
        arrived(&bare[0], options.events).await?;

        let mut limit = 0.0_f64;
        for connections in CONNECTIONS {
            let parts = messages.chunks(messages.len().div_ceil(connections));
            let began = Instant::now();
            try_join_all(parts.zip(&bare).map(|(part, bare)| bare.publish(part))).await?;
            let bare_per_second = f64::from(options.events) / began.elapsed().as_secs_f64();
            arrived(&bare[0], options.events).await?;
            let name = format!("bare publisher, {connections} connection(s): confirmed");
            rounds.add(name, "messages/s", bare_per_second);
            limit = limit.max(bare_per_second);
        }
        rounds.add("relay: published, confirmed and marked", "events/s", per_second);
        rounds.add("relay : best bare publisher", "ratio", per_second / limit);
        rounds.add("events per step, mean", "events", per_step);
    }
    try_join_all(bare.into_iter().map(BarePublisher::close)).await?;
    let notes = vec![
        format!(
            "{} events a round, bodies of real orders; each goes to the queues of inventory and billing; consumers are stopped",
            options.events
        ),
        "the relay's rate is taken from published_at, from the end of its first step to its last mark".into(),
        format!(
            "the bare publisher reads nothing and marks nothing: {IN_FLIGHT} in flight on each connection"
        ),
    ];
    rig.finish("relay", rounds, notes).await
}

/// Empties the queues, and checks that each had all events.
pub(crate) async fn arrived(bare: &BarePublisher, events: u32) -> anyhow::Result<()> {
    let arrived = bare.empty_queues().await?;
    let all = arrived.iter().all(|count| *count >= events);
    ensure!(all, "failed to publish {events} events: the queues have {arrived:?}");
    Ok(())
}

/// Starts the order service and waits until no event is pending. Returns the events per second and per step.
pub(crate) async fn drain(rig: &Rig, database: &mut PgConnection, events: u32) -> anyhow::Result<(f64, f64)> {
    let last: i64 = sqlx::query_scalar("select max(seq) from outbox").fetch_one(&mut *database).await?;
    rig.system.start_again("orders").await?;
    // A rate below a hundred a second is a failure of another kind.
    let deadline = Duration::from_secs(30) + Duration::from_millis(10) * events;
    testbed::eventually("the backlog to be published", deadline, async || {
        // Not more often, because the query takes time on the cores that do the work.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let pending = sqlx::query_scalar("select exists (select from outbox where published_at is null)");
        let pending: bool = pending.fetch_one(&mut *database).await?;
        Ok((!pending).then_some(()))
    })
    .await?;

    // `xmin` is the transaction that marked a row: one for each step. Counting begins where the first step ends, so
    // that neither the service's start nor a part of a step is in the figure.
    let measured = sqlx::query_as(
        "with steps as (
             select count(*) as events, max(published_at) as ended
             from outbox where seq > $1 group by xmin::text
         )
         select (sum(events) - (array_agg(events order by ended))[1])::float8
                    / extract(epoch from max(ended) - min(ended))::float8,
                avg(events)::float8, sum(events)::bigint
         from steps having count(*) > 1",
    );
    let measured = measured.bind(last - i64::from(events)).fetch_optional(database).await?;
    let (per_second, per_step, published): (f64, f64, i64) =
        measured.context("failed to measure the relay: it published the backlog in one step")?;
    ensure!(published == i64::from(events), "failed to measure the relay: it published {published} events");
    Ok((per_second, per_step))
}
