//! The time from the commit of an order to the publication of its event, and to its effects in both services.

use std::time::Duration;

use anyhow::ensure;
use sqlx::Row as _;

use crate::{
    bare_publisher::BarePublisher,
    report::{Figure, Goal, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Orders per second, at constant intervals. May be repeated.
    #[arg(long, default_values_t = [100])]
    rate: Vec<u32>,
    /// How many seconds orders are placed at each rate.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Orders that warm up the system. Their events are also what the bare publisher sends.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    warm_up: u32,
}

/// For the warm-up and for the bare publisher.
const WARM_UP_PER_SECOND: u32 = 100;

/// Begins after the last order. A backlog of seconds at this point is a result too: it is in the percentiles.
const APPLIED_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    // The first connections, plans and pages are no customer's latency.
    eprintln!("warming up");
    let duration = Duration::from_secs(1) * options.warm_up / WARM_UP_PER_SECOND;
    rig.load(WARM_UP_PER_SECOND, duration).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;

    let mut figures = bare_confirms(&rig, options.warm_up).await?;
    for &rate in &options.rate {
        eprintln!("{rate} orders a second for {} s", options.seconds);
        figures.extend(at_rate(&rig, rate, Duration::from_secs(options.seconds)).await?);
    }
    let notes = vec![
        "both ends of each interval are the database's clock, read inside the statements: the order's flush is in \
         it, the flush of the last mark or effect is not"
            .into(),
        "published = confirmed by the broker and marked; effects = the later one of inventory's and billing's records; \
         confirmed = both answers have come back, the payment provider's among them"
            .into(),
        "HTTP latency is counted from when a request was due and includes up to about 1 ms of the timer's grain".into(),
    ];
    rig.finish("latency", figures, notes).await
}

/// Measures how long the broker alone takes to confirm one message.
///
/// It publishes events again that were published before: the consumers drop them as duplicates.
async fn bare_confirms(rig: &Rig, count: u32) -> anyhow::Result<Vec<Figure>> {
    let bare = BarePublisher::connect(&rig.amqp_url()).await?;
    let mut took = Vec::new();
    // At a constant rate, as the events are published: a busy broker confirms sooner.
    let mut tick = tokio::time::interval(Duration::from_secs(1) / WARM_UP_PER_SECOND);
    for message in rig.messages("published_at is not null", count).await? {
        tick.tick().await;
        took.push(bare.publish_one(&message).await?.as_secs_f64() * 1e3);
    }
    bare.close().await?;
    took.sort_by(f64::total_cmp);
    let at = |part: usize| took.get(took.len() * part / 100).copied().into_iter().collect();
    Ok(vec![
        Figure::new("bare publisher: one message confirmed, p50", "ms", at(50))?,
        Figure::new("bare publisher: one message confirmed, p99", "ms", at(99))?,
    ])
}

async fn at_rate(rig: &Rig, rate: u32, duration: Duration) -> anyhow::Result<Vec<Figure>> {
    let before = rig.last_seq().await?;
    let summary = rig.load(rate, duration).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;

    let mut auditor = rig.connect(Login::Auditor).await?;
    let row = sqlx::query(
        "select count(*),
                percentile_disc(array[0.5, 0.99]) within group (order by published),
                percentile_disc(array[0.5, 0.99]) within group (order by applied),
                percentile_disc(array[0.5, 0.99]) within group (order by confirmed)
         from (select (extract(epoch from event.published_at - event.created_at) * 1000)::float8 as published,
                      (extract(epoch from greatest(stock.processed_at, payment.processed_at) - event.created_at)
                       * 1000)::float8 as applied,
                      (extract(epoch from orders.confirmed_at - event.created_at) * 1000)::float8 as confirmed
               from orders.outbox event
               join orders.orders on orders.id = event.aggregate_id
               join inventory.processed_events stock using (event_id)
               join billing.processed_events payment using (event_id)
               where event.seq > $1 and event.event_type = 'OrderCreated') way",
    )
    .bind(before)
    .fetch_one(&mut auditor)
    .await?;
    let (measured, published, applied, confirmed): (i64, Vec<f64>, Vec<f64>, Vec<f64>) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
    ensure!(
        u64::try_from(measured).ok() == Some(summary.accepted),
        "failed to measure {} accepted orders: {measured} events are in all three places",
        summary.accepted
    );

    let goals: [Option<f64>; 6] = match rate {
        100 => [Some(2.0), Some(6.0), Some(10.0), Some(50.0), None, None],
        600 => [Some(3.0), Some(15.0), None, None, None, None],
        _ => [None; 6],
    };
    let names = [
        "commit → published, p50",
        "commit → published, p99",
        "commit → both effects, p50",
        "commit → both effects, p99",
        "commit → confirmed, p50",
        "commit → confirmed, p99",
    ];
    let mut figures = Vec::new();
    for ((name, value), goal) in
        names.into_iter().zip(published.into_iter().chain(applied).chain(confirmed)).zip(goals)
    {
        let figure = Figure::new(format!("{rate}/s: {name}"), "ms", vec![value])?;
        figures.push(match goal {
            Some(bound) => figure.goal(Goal::AtMost(bound)),
            None => figure,
        });
    }
    if let Some(latency) = summary.latency {
        for (name, value) in [("p50", latency.p50), ("p99", latency.p99)] {
            let value = vec![value.as_secs_f64() * 1e3];
            figures.push(Figure::new(format!("{rate}/s: POST /orders answered, {name}"), "ms", value)?);
        }
    }
    Ok(figures)
}
