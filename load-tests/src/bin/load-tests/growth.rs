//! What grows with a system's age and size: the cost of an order beside a long history and with more instances, and the
//! relay's rate with few busy lanes.

use std::time::Duration;

use anyhow::Context as _;
use load_tests::{Load, run as run_load};

use crate::{
    cost::{self, Kind},
    history, orders_sql,
    relay::drain,
    report::{Figure, Report},
    rig::{Login, Rig, Shape},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many published events there are already. May be repeated.
    #[arg(long, default_values_t = [10_000, 1_000_000])]
    history: Vec<u32>,
    /// How many instances of each service run. May be repeated.
    #[arg(long, default_values_t = [1, 2, 4])]
    instances: Vec<usize>,
    /// Over how many lanes a backlog is spread, of 16. May be repeated.
    #[arg(long, default_values_t = [1, 4, 16], value_parser = clap::value_parser!(i16).range(1..=16))]
    lanes: Vec<i16>,
    /// Orders per second, for the cost of an order.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How many seconds orders are placed.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The backlog.
    #[arg(long, default_value_t = 20_000)]
    events: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self {
            history: vec![1_000],
            instances: vec![2],
            lanes: vec![1],
            rate: 50,
            seconds: 1,
            events: self.events.min(3_000),
        }
    }
}

const APPLIED_DEADLINE: Duration = Duration::from_secs(120);
const WARM_UP: Duration = Duration::from_secs(3);

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let (mut figures, mut conditions) = (vec![], None);
    for &events in &options.history {
        eprintln!("{events} published events");
        let rig = Rig::start(setup).await?;
        history::write(&mut rig.connect(Login::Orders).await?, events.into(), "3 days").await?;
        let cost = order_cost(&rig, options, setup).await?;
        figures.push(Figure::new(format!("{events} published events: cost of an order"), "ms", vec![cost])?);
        if conditions.is_none() {
            conditions = Some(rig.conditions().await?);
        }
        rig.stop().await;
    }
    for &instances in &options.instances {
        eprintln!("{instances} instances of each service");
        let rig = Rig::start_with(setup, Shape { instances, ..Shape::default() }).await?;
        let cost = order_cost(&rig, options, setup).await?;
        figures.push(Figure::new(format!("{instances} instances: cost of an order"), "ms", vec![cost])?);
        rig.stop().await;
    }
    eprintln!("a backlog in few and in many lanes");
    let rig = Rig::start(setup).await?;
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;
    for service in ["inventory", "billing", "orders"] {
        rig.stop_service(service).await?;
    }
    for &lanes in &options.lanes {
        rig.fill_lanes(template, options.events, lanes).await?;
        let rate = drain(&rig, options.events).await?.per_second;
        figures.push(Figure::new(format!("{lanes} lanes busy: backlog published"), "events/s", vec![rate])?);
    }
    rig.stop().await;
    let notes = vec![
        "cost: processor time of everything on the machine for an order, until it is at rest".into(),
        format!("orders are placed at {}/s, each to any instance of the order service's first process", options.rate),
        "all lanes of one relay step are one transaction: with one busy lane the second relay has nothing to do".into(),
    ];
    let conditions = conditions.context("no history was measured")?;
    Ok(Report::new("growth", setup, conditions, figures, notes))
}

/// Places orders, and returns the milliseconds of processor time that each has cost in all processes together.
async fn order_cost(rig: &Rig, options: &Options, setup: &Setup) -> anyhow::Result<f64> {
    let warm_up = Load::new(rig.orders_url(), options.rate, setup.pause(WARM_UP));
    run_load(warm_up, |_| ()).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;
    let (orders, spent) = cost::measure(rig, Kind::Rate(options.rate), options.seconds, 0).await?;
    Ok(spent.values().sum::<f64>() / orders)
}
