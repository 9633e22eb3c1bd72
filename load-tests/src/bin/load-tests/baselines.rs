//! Ways to get events out of an outbox, measured alike: how fast, how late, at which cost, and what a fault does to them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use load_tests::{Answer, Load, Outcome, run as run_load};
use tokio::{sync::mpsc, time::sleep};
use uuid::Uuid;

use crate::{
    cpu_time::CpuTimes,
    orders_sql,
    report::{Figure, Report},
    rig::{Login, Rig},
    setup::Setup,
    tap::Tap,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// The backlog that each relay publishes.
    #[arg(long, default_value_t = 5_000)]
    events: u32,
    /// Orders per second, for latency and cost.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How many seconds orders are placed.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..))]
    seconds: u64,
    /// Measure only this relay, for example `product` or `poll-one-by-one`. May be repeated.
    #[arg(long, value_parser = RELAYS)]
    relay: Vec<String>,
}

/// The product's relay, and those of `lab/flawed-services`.
const RELAYS: [&str; 6] =
    [PRODUCT, "poll-one-by-one", "row-locks", "delete-once-published", "trigger-notify", "listen-alone"];
const PRODUCT: &str = "product";

/// For a backlog: the slowest relay publishes some hundred events a second.
fn drain_deadline(events: u32) -> Duration {
    Duration::from_secs(60) + Duration::from_millis(20) * events
}

/// After the last order. A relay that polls once a second takes longer than the others.
const PUBLISHED_DEADLINE: Duration = Duration::from_secs(60);

/// What is not published so long after everything runs again will not be.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// How many orders are placed while nothing listens.
const UNHEARD: usize = 20;

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let chosen = RELAYS
        .into_iter()
        .filter(|name| options.relay.is_empty() || options.relay.iter().any(|chosen| chosen == name));
    let (mut figures, mut conditions) = (Vec::new(), None);
    for name in chosen {
        eprintln!("{name}");
        let variant = Some(name).filter(|name| *name != PRODUCT);
        let rig = Rig::start_with(setup, async |options| {
            options.variant = variant;
            Ok(())
        })
        .await?;
        let measured =
            measure(&rig, name, options, setup).await.with_context(|| format!("failed to measure {name}"));
        figures.extend(measured?);
        if conditions.is_none() {
            conditions = Some(rig.conditions().await?);
        }
        rig.stop().await;
    }
    let notes = vec![
        "the consumers are stopped; each event goes to the queues of inventory and billing, and to one of the benchmark's"
            .into(),
        "late: from the making of the event, just before its transaction, until the benchmark has it; the order's own \
         flush to disk is in it"
            .into(),
        "cost: processor time of the order service, PostgreSQL and RabbitMQ for an order that is accepted and published"
            .into(),
        format!(
            "faults: under load the order service is killed and started again, while each order is cancelled at once; then \
             its LISTEN session is terminated, and {UNHEARD} orders are placed before it listens again"
        ),
    ];
    Ok(Report::new("baselines", setup, conditions.context("no relay was measured")?, figures, notes))
}

async fn measure(rig: &Rig, name: &str, options: &Options, setup: &Setup) -> anyhow::Result<Vec<Figure>> {
    for service in ["inventory", "billing"] {
        rig.stop_service(service).await?;
    }
    // The event that the others are copied from must still be there: some relays delete what they have published.
    rig.stop_broker().await?;
    let template = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    rig.stop_service("orders").await?;
    rig.fill_outbox(template, options.events).await?;
    rig.start_broker().await?;
    let tap = Tap::open(&rig.amqp_url()).await?;
    let mut figures = vec![];
    let mut add = |what: &str, unit, value| -> anyhow::Result<()> {
        figures.push(Figure::new(format!("{name}: {what}"), unit, vec![value])?);
        Ok(())
    };

    rig.start_service("orders").await?;
    let all = usize::try_from(options.events)? + 1;
    tap.wait_for(all, drain_deadline(options.events)).await?;
    add("backlog published", "events/s", tap.arrived()?.rate()?)?;

    tap.forget();
    let (orders, milliseconds) = place(rig, options).await?;
    tap.wait_for(orders, PUBLISHED_DEADLINE).await?;
    let latencies = tap.arrived()?.latencies();
    let at = |part: usize| latencies.get(latencies.len() * part / 100).copied().unwrap_or(f64::NAN);
    add("late, p50", "ms", at(50))?;
    add("late, p99", "ms", at(99))?;
    add("cost of an order", "ms", milliseconds / orders as f64)?;

    tap.forget();
    let mut accepted = kill_under_load(rig, options).await?;
    accepted.extend(place_unheard(rig).await?);
    sleep(setup.pause(STUCK_AFTER)).await;
    let arrived = tap.arrived()?;
    add("after the faults: not published", "events", arrived.missing(&accepted) as f64)?;
    add("after the faults: published twice", "events", arrived.copies() as f64)?;
    add("after the faults: out of order", "events", arrived.out_of_order() as f64)?;
    tap.close().await?;
    Ok(figures)
}

/// Places orders at a constant rate. Returns how many, and the processor time of everything but this process.
async fn place(rig: &Rig, options: &Options) -> anyhow::Result<(usize, f64)> {
    let processes = rig.processes().await;
    let before = CpuTimes::read(&processes);
    let summary = rig.load(options.rate, Duration::from_secs(options.seconds)).await?;
    let spent = CpuTimes::read(&processes).since(&before);
    let by_others = processes.iter().filter_map(|(name, _)| spent.get(name));
    Ok((usize::try_from(summary.accepted)?, by_others.sum()))
}

/// Places orders, cancels each at once, and kills the order service meanwhile. Returns the orders that were acknowledged.
async fn kill_under_load(rig: &Rig, options: &Options) -> anyhow::Result<Vec<Uuid>> {
    let accepted: Arc<Mutex<Vec<Uuid>>> = Arc::default();
    let (to_cancel, cancelled) = mpsc::unbounded_channel();
    let record = {
        let accepted = accepted.clone();
        move |outcome: Outcome| {
            if let Answer::Accepted(id) = outcome.answer {
                accepted.lock().unwrap_or_else(PoisonError::into_inner).push(id);
                let _ = to_cancel.send(id);
            }
        }
    };
    let for_ = Duration::from_secs(options.seconds.min(6));
    let load = run_load(Load::new(rig.orders_url(), options.rate, for_), record);
    let kill = async {
        sleep(for_ / 2).await;
        rig.kill_and_start("orders").await
    };
    let (summary, _, killed) = tokio::join!(load, cancel(rig, cancelled), kill);
    killed?;
    ensure!(summary?.failed > 0, "no request noticed that the order service was killed");
    let accepted = accepted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(accepted)
}

/// Cancels orders until no more are placed. One that cannot be cancelled has one event less.
async fn cancel(rig: &Rig, mut orders: mpsc::UnboundedReceiver<Uuid>) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy().build()?;
    while let Some(id) = orders.recv().await {
        let _ = client.post(format!("{}/orders/{id}/cancellation", rig.orders_url())).send().await;
    }
    Ok(())
}

/// Terminates the session that listens, and places some orders at once. Returns them.
async fn place_unheard(rig: &Rig) -> anyhow::Result<Vec<Uuid>> {
    sleep(Duration::from_secs(2)).await;
    let mut admin = rig.connect(Login::Admin).await?;
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'orders' and query ilike 'listen%'",
    )
    .execute(&mut admin)
    .await?;
    let mut orders = vec![];
    for _ in 0..UNHEARD {
        orders.push(rig.place(orders_sql::TEMPLATE_ORDER).await?);
    }
    Ok(orders)
}
