//! How many orders a second the whole system completes: accepted, reserved, paid for and confirmed.

use std::time::Duration;

use anyhow::{Context as _, ensure};

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

/// Enough for thirty thousand pending orders at a hundred a second.
const CONFIRMED_DEADLINE: Duration = Duration::from_secs(300);

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let [mut accepted, mut confirmed, mut behind] = [vec![], vec![], vec![]];
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}", options.rounds);
        let [in_placing, in_all, late] = measure(&rig, options).await?;
        accepted.push(in_placing);
        confirmed.push(in_all);
        behind.push(late);
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
    rig.finish("saga", figures, notes).await
}

/// Places orders as fast as they are accepted, and waits until all are confirmed. Returns the orders per second while they
/// are placed, those from the first `POST` to the last confirmation, and the seconds from the last `POST` to that.
async fn measure(rig: &Rig, options: &Options) -> anyhow::Result<[f64; 3]> {
    let mut database = rig.connect(Login::Auditor).await?;
    let began: String = sqlx::query_scalar("select clock_timestamp()::text").fetch_one(&mut database).await?;
    let summary = rig.saturate(options.connections, Duration::from_secs(options.seconds)).await?;
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
    Ok([orders / placing, orders / all, behind])
}
