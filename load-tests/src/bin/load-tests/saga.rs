//! How many orders a second the whole system completes: accepted, reserved, paid for and confirmed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use load_tests::{Saturation, saturate};

use crate::{
    report::{Figure, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many seconds orders are placed. Each connection sends its next order when the last one is answered.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Connections to the API.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// How often it is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { seconds: 1, connections: self.connections.min(4), rounds: 1 }
    }
}

/// Enough for thirty thousand pending orders at a hundred a second.
const CONFIRMED_DEADLINE: Duration = Duration::from_secs(300);

/// What one round measured.
pub(crate) struct Round {
    /// Orders per second, while they are placed.
    pub(crate) accepted: f64,
    /// Orders per second, from the first `POST` to the last confirmation.
    pub(crate) confirmed: f64,
    /// Seconds from the last `POST` to the last confirmation.
    behind: f64,
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let (mut accepted, mut confirmed, mut behind) = (vec![], vec![], vec![]);
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}", options.rounds);
        let round = measure(&rig, Duration::from_secs(options.seconds), options.connections).await?;
        accepted.push(round.accepted);
        confirmed.push(round.confirmed);
        behind.push(round.behind);
    }
    let figures = vec![
        Figure::new("orders accepted, while they are placed", "orders/s", accepted)?,
        Figure::new("orders confirmed, from the first POST to the last confirmation", "orders/s", confirmed)?,
        Figure::new("the last confirmation behind the last POST", "s", behind)?,
    ];
    let notes = vec![
        "an order is four events out of three outboxes, and one call to the payment provider".into(),
        "closed loop: accepting and confirming share the cores, and accepting does not wait for confirming"
            .into(),
    ];
    let conditions = rig.conditions().await?;
    rig.stop().await;
    Ok(Report::new("saga", setup, conditions, figures, notes))
}

/// Places orders as fast as they are accepted, and waits until all are confirmed.
pub(crate) async fn measure(rig: &Rig, for_: Duration, connections: u32) -> anyhow::Result<Round> {
    let mut database = rig.connect(Login::Auditor).await?;
    let began: String = sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut database).await?;
    let load = Saturation { url: rig.orders_url(), connections, for_, seed: fastrand::u64(..) };
    let summary = saturate(load, |_| ()).await?;
    ensure!(summary.accepted > 0, "failed to place an order: {summary} {:?}", summary.failures);
    rig.everything_applied(CONFIRMED_DEADLINE).await?;
    let (orders, placing, all, behind): (i64, f64, f64, f64) = sqlx::query_as(
        "select count(*), extract(epoch from max(placed_at) - min(placed_at))::float8,
                extract(epoch from max(confirmed_at) - min(placed_at))::float8,
                extract(epoch from max(confirmed_at) - max(placed_at))::float8
         from orders.orders where placed_at >= $1::timestamptz and status = 'confirmed'",
    )
    .bind(&began)
    .fetch_one(&mut database)
    .await
    .context("failed to measure the orders: none was confirmed")?;
    let orders = u32::try_from(orders)?;
    ensure!(
        u64::from(orders) == summary.accepted,
        "failed to confirm every order: {orders} of {} are confirmed",
        summary.accepted
    );
    let orders = f64::from(orders);
    Ok(Round { accepted: orders / placing, confirmed: orders / all, behind })
}
