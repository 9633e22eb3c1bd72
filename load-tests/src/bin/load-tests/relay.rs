//! The relay's rate at publishing a backlog, beside the rate of a bare publisher with the same messages in memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sqlx::Row as _;

use crate::{
    bare_publisher::{BarePublisher, IN_FLIGHT},
    orders_sql,
    report::{Figure, Goal, Report},
    rig::{Login, Rig},
    setup::Setup,
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

/// A rate below a hundred a second is a failure of another kind.
fn drain_deadline(events: u32) -> Duration {
    Duration::from_secs(30) + Duration::from_secs_f64(f64::from(events) / 100.0)
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.everything_applied(Duration::from_secs(30)).await?;
    // The queues are declared and have no consumer: both sides fill the same queues, and nothing else runs.
    for service in ["inventory", "billing", "orders"] {
        rig.stop_service(service).await?;
    }
    let bare = BarePublisher::connect(&rig.amqp_url()).await?;

    let [mut rates, mut wall, mut steps, mut bare_rates] = [vec![], vec![], vec![], vec![]];
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        rig.fill_outbox(template, options.events).await?;
        // The same bodies for the bare publisher, read before any clock runs.
        let messages = rig.messages("published_at is null", options.events).await?;

        bare.empty_queues().await?;
        let drain = drain(&rig, options.events).await?;
        rates.push(drain.per_second);
        wall.push(drain.wall.as_secs_f64());
        steps.push(drain.per_step);
        let arrived = bare.empty_queues().await?;
        ensure!(
            arrived.iter().all(|count| *count >= options.events),
            "failed to publish {} events: the queues have {arrived:?}",
            options.events
        );

        let took = bare.publish(&messages).await?;
        bare_rates.push(f64::from(options.events) / took.as_secs_f64());
        let arrived = bare.empty_queues().await?;
        ensure!(
            arrived == [options.events; 2],
            "failed to publish the bare publisher's {} messages: the queues have {arrived:?}",
            options.events
        );
    }
    bare.close().await?;
    let relay = Figure::new("relay: published, confirmed and marked", "events/s", rates)?;
    let bare = Figure::new("bare publisher: confirmed", "messages/s", bare_rates)?;
    let ratio = Figure::ratio("relay : bare publisher", &relay, &bare)?.goal(Goal::AtLeast(0.90));
    let figures = vec![
        relay.goal(Goal::AtLeast(12_000.0)),
        bare,
        ratio,
        Figure::new("from the start of the process to the last mark", "s", wall)?,
        Figure::new("events per step, mean", "events", steps)?,
    ];
    let notes = vec![
        format!(
            "{} events a round, bodies of real orders; each goes to the queues of inventory and billing; consumers are stopped",
            options.events
        ),
        "the relay's rate is taken from published_at, from the end of its first step to its last mark".into(),
        format!("the bare publisher reads nothing and marks nothing: one channel, {IN_FLIGHT} in flight"),
    ];
    rig.finish("relay", figures, notes).await
}

/// How the relay published a backlog.
struct Drain {
    per_second: f64,
    wall: Duration,
    per_step: f64,
}

/// Starts the order service, waits until no event is pending, and stops it.
async fn drain(rig: &Rig, events: u32) -> anyhow::Result<Drain> {
    let last = rig.last_seq().await?;
    let mut database = rig.connect(Login::Orders).await?;
    let start = Instant::now();
    rig.start_service("orders").await?;
    testbed::eventually("the backlog to be published", drain_deadline(events), async || {
        // Not more often, because the query takes time on the cores that do the work.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let pending: bool =
            sqlx::query_scalar("select exists (select from outbox where published_at is null)")
                .fetch_one(&mut database)
                .await?;
        Ok((!pending).then_some(()))
    })
    .await?;
    let wall = start.elapsed();
    rig.stop_service("orders").await?;

    // `xmin` is the transaction that marked a row: one for each step. Counting begins where the first step ends, so
    // that neither the service's start nor a part of a step is in the figure.
    let row = sqlx::query(
        "with steps as (
             select count(*) as events, max(published_at) as ended
             from outbox where seq > $1 group by xmin::text
         )
         select (sum(events) - (array_agg(events order by ended))[1])::float8
                    / extract(epoch from max(ended) - min(ended))::float8,
                avg(events)::float8, sum(events)::bigint
         from steps having count(*) > 1",
    )
    .bind(last - i64::from(events))
    .fetch_optional(&mut database)
    .await?
    .context("failed to measure the relay: it published the backlog in one step")?;
    let published: i64 = row.try_get(2)?;
    ensure!(
        published == i64::from(events),
        "failed to measure the relay: it published {published} events, not {events}"
    );
    Ok(Drain { per_second: row.try_get(0)?, wall, per_step: row.try_get(1)? })
}
