//! What it costs to record every order as a trace: the whole system at saturation, with and without spans.

use std::time::Duration;

use trace_store::TraceStore;

use crate::{
    cpu_time::CpuTimes,
    report::{Figure, Report},
    rig::Rig,
    saga,
    setup::{SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many seconds orders are placed. Each connection sends its next order when the last one is answered.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Connections to the API.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// How often both are measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { seconds: 1, connections: self.connections.min(4), rounds: 1 }
    }
}

/// The orders that pay for caches, connections and prepared statements.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long a service may take to send the spans of the last orders.
const SENT_AFTER: Duration = Duration::from_secs(3);

/// The rounds of one of the two.
#[derive(Default)]
struct Rounds {
    accepted: Vec<f64>,
    confirmed: Vec<f64>,
    /// Milliseconds of processor time for each order, in the three services.
    services: Vec<f64>,
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let (mut without, mut with) = (Rounds::default(), Rounds::default());
    let mut spans = vec![];
    let mut conditions = None;
    for number in 1..=options.rounds {
        eprintln!("round {number} of {}", options.rounds);
        let rig = Rig::start(setup).await?;
        without.add(&rig, options, setup).await?;
        rig.stop().await;

        let store = TraceStore::start().await?;
        let traced = setup.with_setting_of_each("OTLP_ENDPOINT", &store.endpoint());
        let rig = Rig::start(&traced).await?;
        let orders = with.add(&rig, options, setup).await?;
        tokio::time::sleep(SENT_AFTER).await;
        spans.push(f64::from(u32::try_from(store.count())?) / orders);
        conditions = Some(rig.conditions().await?);
        rig.stop().await;
    }
    let [accepted_without, confirmed_without, services_without] = without.figures("without spans")?;
    let [accepted, confirmed, services] = with.figures("with spans")?;
    let figures = vec![
        Figure::ratio("orders accepted, with : without", &accepted, &accepted_without)?,
        Figure::ratio("orders confirmed, with : without", &confirmed, &confirmed_without)?,
        Figure::ratio("processor time of the services, with : without", &services, &services_without)?,
        accepted_without,
        accepted,
        confirmed_without,
        confirmed,
        services_without,
        services,
        Figure::new("spans received for each order", "spans", spans)?,
    ];
    let notes = vec![
        "each order is recorded; the store that receives the spans and decodes them shares the cores, in the process of the \
         load generator"
            .into(),
    ];
    let conditions = conditions.unwrap_or_default();
    Ok(Report::new("tracing", setup, conditions, figures, notes))
}

impl Rounds {
    /// Measures one round, and returns how many orders were placed in all, the warm-up included.
    async fn add(&mut self, rig: &Rig, options: &Options, setup: &Setup) -> anyhow::Result<f64> {
        let warm_up = saga::measure(rig, setup.pause(WARM_UP), options.connections).await?;
        let mut services = rig.processes().await;
        services.retain(|(name, _)| SERVICES.contains(&name.as_str()));
        let before = CpuTimes::read(&services);
        let round = saga::measure(rig, Duration::from_secs(options.seconds), options.connections).await?;
        let spent = CpuTimes::read(&services).since(&before);
        let spent: f64 = SERVICES.iter().filter_map(|name| spent.get(*name)).sum();
        self.accepted.push(round.accepted);
        self.confirmed.push(round.confirmed);
        self.services.push(spent / round.orders);
        Ok(warm_up.orders + round.orders)
    }

    fn figures(self, kind: &str) -> anyhow::Result<[Figure; 3]> {
        Ok([
            Figure::new(format!("orders accepted, {kind}"), "orders/s", self.accepted)?,
            Figure::new(format!("orders confirmed, {kind}"), "orders/s", self.confirmed)?,
            Figure::new(format!("processor time of the services, {kind}"), "ms/order", self.services)?,
        ])
    }
}
