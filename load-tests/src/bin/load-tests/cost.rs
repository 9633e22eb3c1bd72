//! What an order costs: processor time by process, and statements by service, at constant rates and at saturation.

use std::{collections::BTreeMap, time::Duration};

use sqlx::Row as _;

use crate::{
    cpu_time::CpuTimes,
    report::{Figure, Goal, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Orders per second, at constant intervals. May be repeated.
    #[arg(long, default_values_t = [50, 100, 300, 600, 1000])]
    rate: Vec<u32>,
    /// How many seconds orders are placed at each rate.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Connections at saturation; 0 leaves saturation out.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// How often each rate is measured.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also list the statements that take most time, at each rate. Counting them costs a few hundredths of all figures.
    #[arg(long)]
    statements: bool,
}

/// Begins after the last order. What is done in this time belongs to the orders too.
const APPLIED_DEADLINE: Duration = Duration::from_secs(300);

const WARM_UP: Duration = Duration::from_secs(3);
const WARM_UP_PER_SECOND: u32 = 100;

/// How many statements are listed for each rate.
const LISTED: usize = 25;

/// One kind of load.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Rate(u32),
    Saturation,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Self::Rate(rate) => format!("{rate}/s"),
            Self::Saturation => "saturation".to_owned(),
        }
    }

    /// Milliseconds of processor time for each order, everything on the machine included.
    fn goal(self) -> Option<Goal> {
        match self {
            Self::Rate(300) => Some(Goal::AtMost(1.5)),
            Self::Rate(600) => Some(Goal::AtMost(1.2)),
            Self::Saturation => Some(Goal::AtMost(0.8)),
            Self::Rate(_) => None,
        }
    }
}

pub(crate) async fn run(options: &Options, setup: &Setup) -> anyhow::Result<Report> {
    let rig = Rig::start(setup).await?;
    if options.statements {
        rig.count_statements().await?;
    }
    eprintln!("warming up");
    rig.load(WARM_UP_PER_SECOND, setup.pause(WARM_UP)).await?;
    rig.everything_applied(APPLIED_DEADLINE).await?;

    let mut kinds: Vec<Kind> = options.rate.iter().copied().map(Kind::Rate).collect();
    kinds.extend((options.connections > 0).then_some(Kind::Saturation));
    let (mut figures, mut notes) = (Vec::new(), Vec::new());
    for kind in kinds {
        let mut rounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut totals = Vec::new();
        for round in 1..=options.rounds {
            eprintln!("{}, round {round} of {}", kind.name(), options.rounds);
            if options.statements {
                rig.forget_statements().await?;
            }
            let (orders, spent) = measure(&rig, kind, options.seconds, options.connections).await?;
            totals.push(spent.values().sum::<f64>() / orders);
            for (process, milliseconds) in spent {
                rounds.entry(process).or_default().push(milliseconds / orders);
            }
            if options.statements && round == 1 {
                notes.extend(statements(&rig, kind, orders).await?);
            }
        }
        let total = Figure::new(format!("{}: everything", kind.name()), "ms", totals)?;
        figures.push(match kind.goal() {
            Some(goal) => total.goal(goal),
            None => total,
        });
        for (process, rounds) in rounds {
            figures.push(Figure::new(format!("{}: {process}", kind.name()), "ms", rounds)?);
        }
    }
    notes.push(
        "processor time (user and system) for each order, from the first POST until all orders are confirmed and at rest; \
         PostgreSQL and RabbitMQ with all their processes"
            .into(),
    );
    rig.finish("cost", figures, notes).await
}

/// Places orders, waits until all are at rest, and returns how many they were and what each process has spent.
async fn measure(
    rig: &Rig,
    kind: Kind,
    seconds: u64,
    connections: u32,
) -> anyhow::Result<(f64, BTreeMap<String, f64>)> {
    let processes = rig.processes().await;
    let before = CpuTimes::read(&processes);
    let for_ = Duration::from_secs(seconds);
    let summary = match kind {
        Kind::Rate(rate) => rig.load(rate, for_).await?,
        Kind::Saturation => rig.saturate(connections, for_).await?,
    };
    rig.everything_applied(APPLIED_DEADLINE).await?;
    let spent = CpuTimes::read(&processes).since(&before);
    Ok((f64::from(u32::try_from(summary.accepted)?), spent))
}

/// Lists the statements that took most time since they were last forgotten.
async fn statements(rig: &Rig, kind: Kind, orders: f64) -> anyhow::Result<Vec<String>> {
    let mut admin = rig.connect(Login::Admin).await?;
    let rows = sqlx::query(
        "select usename, regexp_replace(query, '\\s+', ' ', 'g'), calls::float8, total_exec_time, total_plan_time
         from pg_stat_statements join pg_user on usesysid = userid
         where usename <> 'postgres'
         order by total_exec_time + total_plan_time desc",
    )
    .fetch_all(&mut admin)
    .await?;
    let (mut calls, mut time) = (0.0, 0.0);
    let mut lines = Vec::new();
    for row in rows {
        let (login, text): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let (count, run, plan): (f64, f64, f64) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        calls += count;
        time += run + plan;
        if lines.len() < LISTED {
            let text: String = text.chars().take(90).collect();
            lines.push(format!(
                "{}: {:.2} × {:.3} ms = {:.3} ms an order, of it {:.3} ms planning: {login}: {text}",
                kind.name(),
                count / orders,
                (run + plan) / count,
                (run + plan) / orders,
                plan / orders,
            ));
        }
    }
    let sum = format!(
        "{}: {:.1} statements an order, {:.3} ms inside PostgreSQL's executor and planner, waits included",
        kind.name(),
        calls / orders,
        time / orders
    );
    lines.insert(0, sum);
    Ok(lines)
}
