//! What each part of the outbox row costs: the order service's statement in pgbench, with tables that lack one part each.

use std::time::Duration;

use anyhow::Result;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::{
    orders_sql::{self, OrderScripts},
    pgbench::Pgbench,
    product_sql::ProductSql,
    report::{Figure, Report},
    rig::{Login, Rig},
    setup::Setup,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Connections of pgbench to the database.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// How often each table is measured, alternately.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many seconds each turn takes.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

impl Options {
    pub(crate) fn smoke(self) -> Self {
        Self { connections: self.connections.min(4), rounds: 1, seconds: 1 }
    }
}

/// A copy of the outbox that lacks something.
struct Part {
    name: &'static str,
    /// Statements that change the copy, which is called `part` meanwhile. PostgreSQL gives these names to a copy's indexes.
    changes: &'static [&'static str],
}

const DROP_EVENT_ID: &str = "alter table part drop constraint part_event_id_key";
const DROP_VERSION: &str = "alter table part drop constraint part_aggregate_id_aggregate_version_key";
const DROP_PENDING: &str = "drop index part_lane_seq_idx";
const DROP_FAILED: &str = "drop index part_aggregate_id_seq_idx";
const DROP_CHECKS: &str = "do $$ declare name text; begin
    for name in select conname from pg_constraint where conrelid = 'part'::regclass and contype = 'c' loop
        execute format('alter table part drop constraint %I', name);
    end loop;
end $$";
const PLAIN_TEXT: &str =
    "alter table part alter payload type text, alter headers drop default, alter headers type text";

const PARTS: [Part; 8] = [
    Part { name: "a copy of the outbox", changes: &[] },
    Part { name: "without the unique index on event_id", changes: &[DROP_EVENT_ID] },
    Part { name: "without the unique index on aggregate and version", changes: &[DROP_VERSION] },
    Part { name: "without the index of pending events", changes: &[DROP_PENDING] },
    Part { name: "without the index of failed events", changes: &[DROP_FAILED] },
    Part { name: "without the check constraints", changes: &[DROP_CHECKS] },
    Part { name: "with payload and headers as plain text", changes: &[PLAIN_TEXT] },
    Part {
        name: "with the primary key and nothing else",
        changes: &[DROP_EVENT_ID, DROP_VERSION, DROP_PENDING, DROP_FAILED, DROP_CHECKS, PLAIN_TEXT],
    },
];

/// What is inserted without an outbox row.
const NO_ROW: &str = "without the outbox row";

pub(crate) async fn run(options: &Options, setup: &Setup) -> Result<Report> {
    let scripts = OrderScripts::new(&ProductSql::read()?)?;
    let turn = Duration::from_secs(options.seconds);
    let rig = Rig::start(setup).await?;
    let order = rig.place(orders_sql::TEMPLATE_ORDER).await?;
    let (payload, headers) = rig.event_of(order).await?;
    let pgbench = Pgbench::new(
        rig.database_url().to_owned(),
        options.connections,
        orders_sql::variables(&payload, &headers),
    )?;
    for service in ["inventory", "billing", "orders"] {
        rig.stop_service(service).await?;
    }
    rig.stop_broker().await?;
    let mut database = rig.connect(Login::Orders).await?;
    for (number, part) in PARTS.iter().enumerate() {
        create(&mut database, number, part).await?;
    }

    eprintln!("warming up");
    pgbench.run(&scripts.with_event, Duration::from_secs(1), None).await?;
    let (mut rates, mut without) = (vec![vec![]; PARTS.len()], vec![]);
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for (number, part) in PARTS.iter().enumerate() {
            let script = script(&scripts.with_event, number, part);
            rates[number].push(pgbench.run(&script, turn, None).await?.per_second);
        }
        without.push(pgbench.run(&scripts.without_event, turn, None).await?.per_second);
    }

    let mut figures = vec![];
    for (part, rates) in PARTS.iter().zip(rates) {
        figures.push(Figure::new(part.name, "tx/s", rates)?);
    }
    figures.push(Figure::new(NO_ROW, "tx/s", without)?);
    let names = PARTS.iter().map(|part| part.name).chain([NO_ROW]);
    let ratios = names
        .zip(&figures)
        .skip(1)
        .map(|(name, figure)| Figure::ratio(&format!("{name} : {}", PARTS[0].name), figure, &figures[0]));
    let ratios = ratios.collect::<Result<Vec<_>>>()?;
    figures.extend(ratios);
    let conditions = rig.conditions().await?;
    rig.stop().await;
    let notes = vec![
        format!("{} connections each; the services and the broker are stopped", options.connections),
        "each copy begins empty, and grows by what its own turns write".into(),
    ];
    Ok(Report::new("outbox-row", setup, conditions, figures, notes))
}

/// Creates the copy number `number`: changed under the name `part`, then renamed.
async fn create(database: &mut PgConnection, number: usize, part: &Part) -> Result<()> {
    let changes = part.changes.iter().map(|change| (*change).to_owned());
    let statements = ["create table part (like outbox including all)".to_owned()]
        .into_iter()
        .chain(changes)
        .chain([format!("alter table part rename to part_{number}")]);
    for statement in statements {
        // Text of this file.
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *database).await?;
    }
    // The next copy's indexes get the same names.
    let names: Vec<String> = sqlx::query_scalar(
        "select indexrelid::regclass::text from pg_index where indrelid = $1::text::regclass",
    )
    .bind(format!("part_{number}"))
    .fetch_all(&mut *database)
    .await?;
    for name in names {
        let rename = AssertSqlSafe(format!("alter index {name} rename to {name}_{number}"));
        sqlx::raw_sql(rename).execute(&mut *database).await?;
    }
    Ok(())
}

/// The order service's statement, writing into the copy.
fn script(with_event: &str, number: usize, part: &Part) -> String {
    let script = with_event.replace("insert into outbox ", &format!("insert into part_{number} "));
    if part.changes.contains(&PLAIN_TEXT) { script.replace("::text::json", "::text") } else { script }
}
