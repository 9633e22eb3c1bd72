//! How long the services take to start, and how much memory they and their servers have.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use load_tests::{Saturation, saturate};

use crate::{
    memory, orders_sql,
    report::{Figure, Goal, Report},
    rig::Rig,
    setup::{SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How often each service is started.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// How many seconds orders are placed, as fast as they are accepted, before memory is read again.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many events wait in the outbox when the order service is started for the last reading.
    #[arg(long, default_value_t = 200_000)]
    backlog: u32,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { starts: 1, seconds: 1, backlog: self.backlog.min(2_000) }
    }
}

/// Background work after a start or a load (checks, retries, freeing) ends within this time.
const SETTLE: Duration = Duration::from_secs(3);

/// A rate below 500 orders a second is a failure of another kind.
fn deadline(orders: u64) -> Duration {
    Duration::from_secs(30) + Duration::from_millis(orders * 2)
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    let mut figures = Vec::new();
    eprintln!("starting each service {} times", options.starts);
    for service in SERVICES {
        let mut starts = Vec::new();
        for _ in 0..options.starts {
            rig.stop_service(service).await?;
            starts.push(rig.start_service(service).await?.as_secs_f64() * 1e3);
        }
        figures.push(Figure::new(format!("{service}: start until ready"), "ms", starts)?);
    }

    tokio::time::sleep(setup.pause(SETTLE)).await;
    figures.extend(resident(&rig, "idle", Some(20.0)).await?);

    let accepted = load(&rig, options).await?;
    tokio::time::sleep(setup.pause(SETTLE)).await;
    figures.extend(resident(&rig, "after load", None).await?);

    drain(&rig, options).await?;
    for (service, pid) in rig.processes().await {
        if SERVICES.contains(&service.as_str()) {
            let peak =
                Figure::new(format!("{service}: peak, backlog drained"), "MiB", vec![memory::peak(pid)?])?;
            figures.push(peak.goal(Goal::AtMost(48.0)));
        }
    }
    // The consumers and the payments are still at work: the conditions ask for an idle system.
    for service in SERVICES {
        rig.stop_service(service).await?;
    }
    let conditions = rig.conditions().await?;
    rig.stop().await;
    let notes = vec![
        "services: resident memory (VmRSS, VmHWM); PostgreSQL: proportional memory of all its processes, shared \
         buffers counted once; RabbitMQ: the same, of the Erlang VM and its helpers"
            .into(),
        format!("{accepted} orders were accepted under load; the backlog was {} events", options.backlog),
        "peaks are read when the relay has published the backlog, while the consumers' queues are full; those of \
         inventory and billing include the load before"
            .into(),
    ];
    Ok(Report::new("footprint", setup, conditions, figures, notes))
}

/// Places orders as fast as they are accepted, waits until all are confirmed, and returns how many they were.
async fn load(rig: &Rig, options: &Options) -> anyhow::Result<u64> {
    eprintln!("placing orders for {} s", options.seconds);
    let duration = Duration::from_secs(options.seconds);
    let load = Saturation { url: rig.orders_url(), connections: 32, for_: duration, seed: fastrand::u64(..) };
    let summary = saturate(load, |_| ()).await?;
    ensure!(
        summary.accepted == summary.sent,
        "failed to place every order: {summary} {:?}",
        summary.failures
    );
    eprintln!("{} orders were accepted; waiting until they are confirmed", summary.accepted);
    rig.everything_applied(deadline(summary.accepted)).await?;
    Ok(summary.accepted)
}

/// Fills the outbox while the order service is stopped, starts it, and waits until its relay has published the backlog.
///
/// It does not wait for the orders' confirmations. Each needs a call to the payment provider, at some 600 a second on two
/// cores: five minutes for 200,000 orders, in which no service's memory grows.
async fn drain(rig: &Rig, options: &Options) -> anyhow::Result<()> {
    eprintln!("filling the outbox with {} events", options.backlog);
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.stop_service("orders").await?;
    rig.fill_outbox(template, options.backlog).await?;
    let last = rig.last_seq().await?;
    eprintln!("starting the order service, whose relay publishes them");
    rig.start_service("orders").await?;
    rig.published_up_to(last, deadline(options.backlog.into())).await
}

/// Reads the memory that services and servers have now.
async fn resident(rig: &Rig, when: &str, goal: Option<f64>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let processes: BTreeMap<String, u32> = rig.processes().await.into_iter().collect();
    for service in SERVICES {
        let pid =
            processes.get(service).with_context(|| format!("failed to measure {service}: it has ended"))?;
        let figure = Figure::new(format!("{service}: {when}"), "MiB", vec![memory::resident(*pid)?])?;
        figures.push(match goal {
            Some(bound) => figure.goal(Goal::AtMost(bound)),
            None => figure,
        });
    }
    for server in ["PostgreSQL", "RabbitMQ"] {
        if let Some(pid) = processes.get(server) {
            let together = memory::proportional(*pid)?;
            figures.push(Figure::new(format!("{server}: {when}"), "MiB", vec![together])?);
        }
    }
    Ok(figures)
}
