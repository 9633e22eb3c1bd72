//! What one order costs in a calm system, counted and not timed: messages to PostgreSQL, transactions, messages through the
//! broker and calls to the payment provider; and what the system sends while it does nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use sqlx::{Connection as _, PgConnection};
use testbed::Instances;

use crate::{
    counting_forwarder::{AMQP, Counter, Counts, Kind, NOTIFICATION},
    report::{Report, Rounds},
    rig::{Rig, SERVICES, Setup},
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// How many orders are placed, each when the one before it is confirmed.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    orders: u32,
    /// For how many seconds the system is watched at rest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rest: u64,
    /// How many instances of each service run.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    instances: u16,
    /// Lets every commit wait for a standby of PostgreSQL: what rests on a read then costs a commit too.
    #[arg(long)]
    standby: bool,
}

const CONFIRMED_DEADLINE: Duration = Duration::from_secs(30);

/// Orders before the first that counts: connections are opened, and statements prepared.
const WARM_UP: u32 = 10;

/// The order service cancels late orders only after ten checks, one a second, in which it had caught up.
const SETTLE: Duration = Duration::from_secs(12);

/// What follows the last mark of an order is done in this time: deliveries and acknowledgements.
const PAUSE: Duration = Duration::from_millis(50);

/// The listed kinds of messages, and how much of their texts is shown.
const LISTED_FROM: f64 = 0.05;
const TEXT_LENGTH: usize = 100;

/// The payment provider's process, and its only pool besides the one for its health.
const PROVIDER: &str = "provider";

/// The name of the relays' sessions.
const RELAY: &str = "relay";

/// Messages and transactions an order, or a second.
type Rates = BTreeMap<Kind, [f64; 2]>;

pub(crate) async fn run(mut options: Options, setup: &Setup) -> anyhow::Result<Report> {
    if setup.smoke {
        options = Options { orders: 20, rest: 10, ..options };
    }
    let counter = Counter::default();
    let mut rig = Rig::start_with(setup, async |system| {
        let count = usize::from(options.instances);
        system.setup.instances = Instances { orders: count, inventory: count, billing: count };
        for process in SERVICES.into_iter().chain([PROVIDER]) {
            let url = counter.forward(process, &system.database.of(process)).await?;
            system.setup.settings.push((format!("{}_DATABASE_URL", process.to_uppercase()), url));
        }
        for service in SERVICES {
            let url = counter.forward(service, &system.amqp_url).await?;
            system.setup.settings.push((format!("{}_AMQP_URL", service.to_uppercase()), url));
        }
        Ok(())
    })
    .await?;
    if options.standby {
        rig.start_standby().await?;
    }
    let mut database = PgConnection::connect(&rig.urls.of("auditor")).await?;
    place(&rig, &mut database, WARM_UP).await?;
    tokio::time::sleep(setup.pause(SETTLE)).await;
    eprintln!("{} s at rest", options.rest);
    let (before, begin) = (counter.counts(), Instant::now());
    tokio::time::sleep(Duration::from_secs(options.rest)).await;
    let rest = since(&before, counter.counts(), begin.elapsed().as_secs_f64());

    // A relay that was woken polls later. So what its polls send beside orders is less than what they send at rest, and could
    // not be subtracted.
    let never = |service: &str| {
        ["RELAY_POLL", "RELAY_FULL_SCAN"]
            .map(|name| (format!("{}_{name}", service.to_uppercase()), "1h".to_owned()))
    };
    rig.restart_services(SERVICES.into_iter().flat_map(never).collect()).await?;
    place(&rig, &mut database, WARM_UP).await?;
    eprintln!("{} orders", options.orders);
    let (before, begin) = (counter.counts(), Instant::now());
    place(&rig, &mut database, options.orders).await?;
    let (orders, took) = (f64::from(options.orders), begin.elapsed().as_secs_f64());
    let mut order = since(&before, counter.counts(), orders);
    for (kind, timers) in rest.iter().filter(|(kind, _)| kind.session != RELAY) {
        let count = order.entry(kind.clone()).or_default();
        *count = std::array::from_fn(|index| count[index] - timers[index] * took / orders);
    }
    order.retain(|kind, _| !is_of_no_order(kind));
    let empty_scans = without_empty_scans(&mut order);

    let (mut rounds, mut notes) = (Rounds::default(), Vec::new());
    rounds.add("an order: scans that find nothing", "scans", empty_scans);
    for (per, rates) in [("an order", &order), ("a second at rest", &rest)] {
        add_figures(&mut rounds, per, rates);
        notes.extend(lines(per, rates));
    }
    notes.push(format!(
        "{orders} orders in {took:.1} s, each placed when the one before it was confirmed and published; relays do not poll \
         meanwhile, and what other timers send at rest is subtracted"
    ));
    notes.push(
        "left out of an order: connections are opened and tested, statements prepared, exchanges and queues declared again"
            .into(),
    );
    rig.finish("count", rounds, notes).await
}

/// Places orders one at a time, and waits until each is confirmed and all events are published.
async fn place(rig: &Rig, database: &mut PgConnection, orders: u32) -> anyhow::Result<()> {
    for _ in 0..orders {
        let order = rig.place().await?;
        testbed::eventually("an order to be confirmed", CONFIRMED_DEADLINE, async || {
            let done = sqlx::query_scalar(
                "select (select status = 'confirmed' from orders.orders where id = $1)
                    and not exists (select from orders.outbox where published_at is null)
                    and not exists (select from inventory.outbox where published_at is null)
                    and not exists (select from billing.outbox where published_at is null)",
            );
            let done: bool = done.bind(order).fetch_one(&mut *database).await?;
            Ok(done.then_some(()))
        })
        .await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Divides what was counted since `before`.
fn since(before: &Counts, after: Counts, by: f64) -> Rates {
    let rate = |(kind, after): (Kind, [u32; 2])| {
        let before = before.get(&kind).copied().unwrap_or_default();
        (kind, std::array::from_fn(|index| f64::from(after[index] - before[index]) / by))
    };
    after.into_iter().map(rate).collect()
}

/// What no order causes: a connection is opened, tested before it is lent, or renewed; exchanges and queues are declared again.
fn is_of_no_order(kind: &Kind) -> bool {
    let begins = ["(prepare)", "set ", "show transaction_read_only", "LISTEN", "UNLISTEN"];
    let declares = ["exchange.declare", "queue.declare", "queue.bind"];
    begins.iter().any(|text| kind.text.starts_with(text)) || declares.contains(&kind.text.as_str())
}

/// Takes out what a relay sends when it was woken and another scan has taken the event already, and returns how often that
/// happened: the more often, the slower the machine. Relays do not poll meanwhile.
fn without_empty_scans(order: &mut Rates) -> f64 {
    let mut all = 0.0;
    for service in SERVICES {
        let of_relay = |kind: &Kind| kind.process == service && kind.session == RELAY;
        let ended = order.extract_if(.., |kind, _| of_relay(kind) && kind.text == "rollback");
        let empty: f64 = ended.map(|(_, rate)| rate[0]).sum();
        let begun = order.iter_mut().find(|(kind, _)| of_relay(kind) && kind.text.starts_with("begin;"));
        if let Some((_, rate)) = begun {
            rate[0] -= empty;
        }
        all += empty;
    }
    all
}

/// The whole part of a rate. What happens in fewer than three of four orders, or seconds, is a timer or chance. What one more
/// message an order adds is a whole, also on a slow machine.
fn whole(rate: f64) -> f64 {
    (rate + 0.25).floor().max(0.0)
}

/// Adds the sums of all processes, and of each.
fn add_figures(rounds: &mut Rounds, per: &str, rates: &Rates) {
    let sql = |kind: &Kind| kind.session != AMQP && kind.text != NOTIFICATION;
    for (index, what) in [(0, "messages"), (1, "transactions")] {
        let wholes = rates.iter().filter(|(kind, _)| sql(kind)).map(|(_, rate)| whole(rate[index])).sum();
        rounds.add(format!("{per}: regular {what}"), what, wholes);
    }
    let mut add = |what: &str, unit, index: usize, counts: &dyn Fn(&Kind) -> bool| {
        let sum = rates.iter().filter(|(kind, _)| counts(kind)).map(|(_, rate)| rate[index]).sum();
        rounds.add(format!("{per}: {what}"), unit, sum);
    };
    for (index, unit, what) in
        [(0, "messages", "messages to PostgreSQL"), (1, "transactions", "transactions")]
    {
        add(what, unit, index, &sql);
        for process in SERVICES.into_iter().chain([PROVIDER]) {
            add(&format!("{what}, {process}"), unit, index, &|kind| sql(kind) && kind.process == process);
        }
    }
    add("notifications from PostgreSQL", "messages", 0, &|kind| kind.text == NOTIFICATION);
    add("basic.publish", "frames", 0, &|kind| kind.text.starts_with("basic.publish"));
    add("basic.ack", "frames", 0, &|kind| kind.text == "basic.ack");
    add("confirms of the broker", "frames", 0, &|kind| kind.text == "basic.ack from the broker");
    // Each call is one statement there.
    add("calls to the payment provider", "calls", 0, &|kind| {
        kind.process == PROVIDER && kind.session == PROVIDER
    });
}

/// One line for each kind of message, the most frequent first.
fn lines(per: &str, rates: &Rates) -> Vec<String> {
    let mut rates: Vec<_> = rates.iter().filter(|(_, rate)| rate[0].abs() >= LISTED_FROM).collect();
    rates.sort_by(|(_, one), (_, other)| other[0].total_cmp(&one[0]));
    let line = |(kind, [messages, transactions]): (&Kind, &[f64; 2])| {
        let Kind { process, session, text } = kind;
        let text: String = text.chars().take(TEXT_LENGTH).collect();
        format!(
            "{per}: {messages:5.2} messages, {transactions:5.2} transactions: {process}, {session}: {text}"
        )
    };
    rates.into_iter().map(line).collect()
}
