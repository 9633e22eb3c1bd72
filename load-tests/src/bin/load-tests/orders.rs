//! Orders at constant rates and at saturation: how long each takes, how many a second, and what processor time each costs.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sqlx::{Connection as _, PgConnection};

use crate::{
    backlog,
    bare_publisher::BarePublisher,
    relays,
    report::{Report, Rounds},
    rig::{RELAYS, Rig, Setup, WARM_UP_PER_SECOND, log_position},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Orders per second, at constant intervals. May be repeated.
    #[arg(long, default_values_t = [50, 100, 300, 600])]
    rate: Vec<u32>,
    /// How many seconds orders are placed at each rate.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Connections at saturation, each of which sends its next order when the last one is answered; 0 leaves it out.
    #[arg(long, default_value_t = 16)]
    connections: u32,
    /// How often each rate is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also list the statements that take most time, at each rate. Counting them costs a few hundredths of all figures.
    #[arg(long)]
    statements: bool,
    /// Measure the relay that polls and the one that reads the write-ahead log, in turns: also at rest, after an outage of the
    /// broker, at a take-over and with a backlog.
    #[arg(long, conflicts_with = "statements")]
    relays: bool,
    /// With `--relays`: for how many seconds the broker is away. Measured once.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    outage: u64,
}

pub(crate) async fn run(mut options: Options, setup: &Setup) -> anyhow::Result<Report> {
    if setup.smoke {
        options = Options {
            rate: vec![50],
            connections: 4,
            rounds: 1,
            seconds: 1,
            outage: 3,
            statements: !options.relays,
            ..options
        };
    }
    let mut rig = Rig::start(setup).await?;
    if options.relays {
        rig.allow_log_relay().await?;
    }
    if options.statements {
        rig.count_statements().await?;
    }
    rig.warm_up().await?;

    let (mut rounds, mut notes) = (Rounds::default(), Vec::new());
    bare_confirms(&rig, &mut rounds).await?;
    let rates = options.rate.iter().copied().map(Some);
    for rate in rates.chain((options.connections > 0).then_some(None)) {
        let load = rate.map_or_else(|| "saturation".to_owned(), |rate| format!("{rate}/s"));
        for round in 1..=options.rounds {
            eprintln!("{load}, round {round} of {}", options.rounds);
            if options.statements {
                rig.administer("select pg_stat_statements_reset()").await?;
            }
            for relay in RELAYS.into_iter().filter(|_| options.relays) {
                rig.use_relay(relay, 1).await?;
                rig.warm_up().await?;
                measure(&rig, rate, &options, [&load, &format!(", {relay}")], &mut rounds).await?;
            }
            if options.relays {
                continue;
            }
            let orders = measure(&rig, rate, &options, [&load, ""], &mut rounds).await?;
            if options.statements && round == 1 {
                notes.extend(statements(&rig, &load, orders).await?);
            }
        }
    }
    if options.relays {
        let outage = Duration::from_secs(options.outage);
        relays::measure(&mut rig, setup, options.rounds, outage, &mut rounds).await?;
        notes.extend(relays::NOTES.map(str::to_owned));
    }
    notes.extend([
        "both ends of an interval after the commit are the database's clock, read inside the statements: the order's flush is in it, the flush of the last mark or effect is not".into(),
        "published = confirmed by the broker and marked; confirmed = both answers have come back, the payment provider's among them".into(),
        "HTTP latency is counted from when a request was due and includes up to about 1 ms of the timer's grain".into(),
        "processor time = user and system for each order, from the first POST until all are confirmed and at rest; the servers with all their processes".into(),
        "saturation is a closed loop: accepting and confirming share the cores, and accepting does not wait for confirming".into(),
    ]);
    rig.finish("orders", rounds, notes).await
}

/// Measures how long the broker alone takes to confirm one message: the least that any publisher adds to a commit.
///
/// It publishes events again that were published before: the consumers drop them as duplicates.
async fn bare_confirms(rig: &Rig, rounds: &mut Rounds) -> anyhow::Result<()> {
    let bare = BarePublisher::connect(&rig.rabbitmq.url()).await?;
    let mut database = PgConnection::connect(&rig.urls.of("orders")).await?;
    let mut took = Vec::new();
    // At a constant rate, as the events are published: a busy broker confirms sooner.
    let mut tick = tokio::time::interval(Duration::from_secs(1) / WARM_UP_PER_SECOND);
    for message in backlog::messages(&mut database, "published_at is not null", 200).await? {
        tick.tick().await;
        let began = Instant::now();
        bare.publish(&[message]).await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    bare.close().await?;
    took.sort_by(f64::total_cmp);
    for (name, part) in [("p50", 50), ("p99", 99)] {
        let at = took.get(took.len() * part / 100).copied().unwrap_or(f64::NAN);
        rounds.add(format!("bare publisher: one message confirmed, {name}"), "ms", at);
    }
    Ok(())
}

/// Places orders at a rate, or as many as are accepted, waits until all are at rest, and adds one round of each figure, whose
/// name begins with the load and ends with the relay. Returns how many they were.
async fn measure(
    rig: &Rig,
    rate: Option<u32>,
    options: &Options,
    [load, relay]: [&str; 2],
    rounds: &mut Rounds,
) -> anyhow::Result<f64> {
    let mut auditor = PgConnection::connect(&rig.urls.of("auditor")).await?;
    let log_before = log_position(&mut auditor).await?;
    let before: i64 =
        sqlx::query_scalar("select max(seq) from orders.outbox").fetch_one(&mut auditor).await?;
    let times_before = rig.processor_times().await?;
    let for_ = Duration::from_secs(options.seconds);
    let summary = match rate {
        Some(rate) => rig.load(rate, for_).await?,
        None => rig.saturate(options.connections, for_).await?,
    };
    rig.everything_applied().await?;
    let spent = rig.milliseconds_since(&times_before).await?;
    let way = Way::since(&mut auditor, before).await?;
    ensure!(
        u64::try_from(way.orders)? == summary.accepted,
        "{} orders are confirmed, of {summary}",
        way.orders
    );

    let orders = summary.accepted as f64;
    let mut add = |what: String, unit, value| rounds.add(format!("{load}: {what}{relay}"), unit, value);
    match (rate, summary.latency) {
        (Some(_), Some(latency)) => {
            let answered = [latency.p50, latency.p99].map(|latency| latency.as_secs_f64() * 1e3);
            for (index, quantile) in ["p50", "p99"].into_iter().enumerate() {
                add(format!("commit → published, {quantile}"), "ms", way.published[index]);
                add(format!("commit → confirmed, {quantile}"), "ms", way.confirmed[index]);
                add(format!("POST /orders answered, {quantile}"), "ms", answered[index]);
            }
        }
        // In a closed loop a latency belongs to no rate.
        _ => {
            add("orders accepted, while they are placed".into(), "orders/s", orders / way.placing);
            add("orders confirmed, from the first POST to the last".into(), "orders/s", orders / way.all);
        }
    }
    let log = log_position(&mut auditor).await? - log_before;
    add("write-ahead log of an order".into(), "kB", log / 1e3 / orders);
    add("processor time of an order".into(), "ms", spent.values().sum::<f64>() / orders);
    for (process, milliseconds) in spent {
        add(format!("… {process}"), "ms", milliseconds / orders);
    }
    Ok(orders)
}

/// How orders went through the system.
#[derive(sqlx::FromRow)]
struct Way {
    orders: i64,
    /// p50 and p99 after the commit, in milliseconds.
    published: Vec<f64>,
    confirmed: Vec<f64>,
    /// Seconds from the first order to the last, and to the last confirmation.
    placing: f64,
    all: f64,
}

impl Way {
    /// Reads the orders that are confirmed, of those whose events came after `seq`.
    async fn since(database: &mut PgConnection, seq: i64) -> sqlx::Result<Self> {
        let orders = sqlx::query_as(
            "select count(*) as orders,
                    percentile_disc(array[0.5, 0.99]) within group (order by published) as published,
                    percentile_disc(array[0.5, 0.99]) within group (order by confirmed) as confirmed,
                    extract(epoch from max(placed_at) - min(placed_at))::float8 as placing,
                    extract(epoch from max(confirmed_at) - min(placed_at))::float8 as all
             from (select (extract(epoch from event.published_at - event.created_at) * 1000)::float8 as published,
                          (extract(epoch from orders.confirmed_at - event.created_at) * 1000)::float8 as confirmed,
                          orders.placed_at, orders.confirmed_at
                   from orders.outbox event join orders.orders on orders.id = event.aggregate_id
                   where event.seq > $1 and event.event_type = 'OrderCreated' and orders.status = 'confirmed') way",
        );
        orders.bind(seq).fetch_one(database).await
    }
}

/// Lists the statements that took most time since they were last forgotten, and the sum of all.
async fn statements(rig: &Rig, load: &str, orders: f64) -> anyhow::Result<Vec<String>> {
    let statements = sqlx::query_scalar(
        "select $1 || format(': %s × %s ms = %s ms an order: ', round((calls / $2)::numeric, 2),
                             round((time / calls)::numeric, 3), round((time / $2)::numeric, 3)) || text
         from (select coalesce(usename || ': ' || left(regexp_replace(query, '\\s+', ' ', 'g'), 90), 'all statements') as text,
                      sum(calls) as calls, sum(total_exec_time + total_plan_time) as time
               from pg_stat_statements join pg_user on usesysid = userid
               where usename <> 'postgres' group by grouping sets ((usename, query), ()) order by time desc limit 25) listed",
    );
    let mut admin = PgConnection::connect(&rig.admin_url()).await?;
    Ok(statements.bind(load).bind(orders).fetch_all(&mut admin).await?)
}
