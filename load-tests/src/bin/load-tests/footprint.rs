//! How soon the services are ready, and how much memory everything takes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::ensure;
use load_tests::{Saturation, saturate};

use crate::{
    memory, orders_sql,
    report::{Figure, Goal, Report},
    rig::Rig,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How long orders are placed, as fast as they are accepted, before memory is looked at again.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many events wait in the outbox when the order service is started for the last look.
    #[arg(long, default_value_t = 200_000)]
    backlog: u32,
}

const SERVICES: [&str; 3] = ["orders", "inventory", "billing"];
const STARTS: usize = 5;

/// What is done in the background after a start or a load (checks, retries, freeing) should be over by then.
const SETTLE: Duration = Duration::from_secs(3);

/// The slowest of the three has to take in a backlog at no less than 500 a second.
fn patience(events: u64) -> Duration {
    Duration::from_secs(30) + Duration::from_millis(events * 2)
}

pub(crate) async fn run(options: &Options, settings: &[(String, String)]) -> anyhow::Result<Report> {
    let rig = Rig::start(settings.to_vec()).await?;
    let mut figures = Vec::new();
    for service in SERVICES {
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            rig.stop_service(service).await?;
            starts.push(rig.start_service(service).await?.as_secs_f64() * 1e3);
        }
        figures.push(Figure::new(format!("{service}: start until ready"), "ms", starts)?);
    }

    tokio::time::sleep(SETTLE).await;
    figures.extend(look(&rig, "idle", Some(20.0)).await?);

    eprintln!("load for {} s", options.seconds);
    let for_ = Duration::from_secs(options.seconds);
    let load = Saturation { url: rig.orders_url(), connections: 32, for_, seed: fastrand::u64(..) };
    let summary = saturate(load, |_| ()).await?;
    ensure!(
        summary.accepted == summary.sent,
        "not every order was accepted: {summary} {:?}",
        summary.failures
    );
    rig.everything_applied(patience(summary.accepted)).await?;
    tokio::time::sleep(SETTLE).await;
    figures.extend(look(&rig, "after load", None).await?);

    eprintln!("a backlog of {} events", options.backlog);
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.stop_service("orders").await?;
    rig.fill_outbox(template, options.backlog).await?;
    rig.start_service("orders").await?;
    rig.everything_applied(patience(options.backlog.into())).await?;
    for (service, pid) in rig.processes().await {
        if SERVICES.contains(&service.as_str()) {
            let most =
                Figure::new(format!("{service}: peak, backlog drained"), "MiB", vec![memory::peak(pid)?])?;
            figures.push(most.goal(Goal::AtMost(48.0)));
        }
    }
    let notes = vec![
        "services: resident memory (VmRSS, VmHWM); PostgreSQL: proportional memory of all its processes, shared \
         buffers counted once; RabbitMQ: the same, of the Erlang VM and its helpers"
            .into(),
        format!("{} orders were accepted under load; the backlog was {} events", summary.accepted, options.backlog),
        "peaks of inventory and billing include the load before".into(),
    ];
    let conditions = rig.conditions().await?;
    rig.stop().await;
    Ok(Report { benchmark: "footprint", conditions, figures, notes })
}

async fn look(rig: &Rig, when: &str, goal: Option<f64>) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let processes: BTreeMap<String, u32> = rig.processes().await.into_iter().collect();
    for service in SERVICES {
        let pid = processes.get(service).copied().unwrap_or_default();
        let figure = Figure::new(format!("{service}: {when}"), "MiB", vec![memory::resident(pid)?])?;
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
