//! How many orders a second go all the way: accepted, put aside, paid for, confirmed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use load_tests::{Saturation, saturate};

use crate::{
    report::{Figure, Report},
    rig::{Login, Rig},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long orders are placed, each connection sending its next when the last is answered.
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Connections.
    #[arg(long, default_value_t = 16)]
    pub(crate) connections: u32,
    /// How often.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
}

/// The way back takes as long as it takes: with ten thousand orders under way, at no less than a hundred a second.
const ENDED_WITHIN: Duration = Duration::from_secs(300);

pub(crate) async fn run(options: &Options, settings: &[(String, String)]) -> anyhow::Result<Report> {
    let rig = Rig::start(settings.to_vec()).await?;
    let mut database = rig.connect(Login::Auditor).await?;
    let (mut accepted, mut confirmed, mut behind) = (vec![], vec![], vec![]);
    for round in 1..=options.rounds.max(1) {
        eprintln!("round {round} of {}", options.rounds.max(1));
        let began: String =
            sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut database).await?;
        let load = Saturation {
            url: rig.orders_url(),
            connections: options.connections,
            for_: Duration::from_secs(options.seconds),
            seed: fastrand::u64(..),
        };
        let summary = saturate(load, |_| ()).await?;
        ensure!(summary.accepted > 0, "nothing was accepted: {summary}");
        rig.everything_applied(ENDED_WITHIN).await?;
        let (orders, placing, all, late): (i64, f64, f64, f64) = sqlx::query_as(
            "select count(*), extract(epoch from max(placed_at) - min(placed_at))::float8,
                    extract(epoch from max(confirmed_at) - min(placed_at))::float8,
                    extract(epoch from max(confirmed_at) - max(placed_at))::float8
             from orders.orders where placed_at >= $1::timestamptz and status = 'confirmed'",
        )
        .bind(&began)
        .fetch_one(&mut database)
        .await
        .context("no order was confirmed")?;
        let orders = u32::try_from(orders)?;
        ensure!(u64::from(orders) == summary.accepted, "{orders} of {} were confirmed", summary.accepted);
        accepted.push(f64::from(orders) / placing);
        confirmed.push(f64::from(orders) / all);
        behind.push(late);
    }
    let figures = vec![
        Figure::new("orders accepted, while they are placed", "orders/s", accepted)?,
        Figure::new("orders confirmed, from the first POST to the last confirmation", "orders/s", confirmed)?,
        Figure::new("the last confirmation behind the last POST", "s", behind)?,
    ];
    let notes = vec![
        "an order is four events out of three outboxes, and one call to the payment provider".into(),
        "closed loop: accepting competes with confirming for the same cores, and has nothing to wait for"
            .into(),
    ];
    let conditions = rig.conditions().await?;
    rig.stop().await;
    Ok(Report { benchmark: "saga", conditions, figures, notes })
}
