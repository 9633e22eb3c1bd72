//! Clients hang up at random moments. The server drops a handler when its client disconnects, wherever it is. A `BEGIN` in
//! the handler would lose other clients' acknowledged orders that way, without any error.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use reqwest::Client;
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::{DEADLINE, Orders, order};

const CLIENTS: usize = 16;

/// The least number of orders that are acknowledged, and of requests that are cut off.
const MIN_ACKNOWLEDGED: usize = 500;
const MIN_HUNG_UP: usize = 800;

/// How long the clients may take to reach both numbers, on a busy machine.
const RUN_DEADLINE: Duration = Duration::from_secs(120);

/// How long a client waits that does not hang up.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// What all clients have reached together.
#[derive(Default)]
struct Progress {
    acknowledged: AtomicUsize,
    hung_up: AtomicUsize,
}

impl Progress {
    fn is_enough(&self) -> bool {
        self.acknowledged.load(Ordering::SeqCst) > MIN_ACKNOWLEDGED
            && self.hung_up.load(Ordering::SeqCst) > MIN_HUNG_UP
    }
}

enum Outcome {
    Acknowledged(Uuid),
    Refused,
    HungUp,
}

/// Places an order and hangs up after `wait`.
async fn place(client: &Client, url: &str, wait: Duration) -> anyhow::Result<Outcome> {
    let answered = async {
        match client.post(url).json(&order()).send().await {
            Ok(response) if response.status() == 201 => {
                let mut body: Value = response.json().await?;
                Ok(Outcome::Acknowledged(serde_json::from_value(body["id"].take())?))
            }
            _ => Ok(Outcome::Refused),
        }
    };
    timeout(wait, answered).await.unwrap_or(Ok(Outcome::HungUp))
}

/// Places orders until all clients together have reached enough. Every third request waits for its answer; the others hang
/// up within about the time that an order takes.
async fn run_client(client: Client, url: String, progress: Arc<Progress>) -> anyhow::Result<Vec<Uuid>> {
    let began = Instant::now();
    let mut acknowledged = vec![];
    // How long an order takes on this machine, under this load.
    let mut typical = Duration::from_millis(2);
    for number in 0.. {
        if progress.is_enough() {
            break;
        }
        ensure!(began.elapsed() < RUN_DEADLINE, "too few orders or too few hang-ups after {RUN_DEADLINE:?}");
        let patient = number % 3 == 0;
        let wait = if patient { ANSWER_DEADLINE } else { typical.mul_f64(2.0 * fastrand::f64()) };
        let sent = Instant::now();
        match place(&client, &url, wait).await? {
            Outcome::Acknowledged(id) => {
                acknowledged.push(id);
                progress.acknowledged.fetch_add(1, Ordering::SeqCst);
                if patient {
                    typical = (typical * 3 + sent.elapsed()) / 4;
                }
            }
            Outcome::Refused => {}
            Outcome::HungUp => _ = progress.hung_up.fetch_add(1, Ordering::SeqCst),
        }
    }
    Ok(acknowledged)
}

#[tokio::test]
async fn hang_ups_lose_no_acknowledged_order() -> anyhow::Result<()> {
    // Few connections: one that a hang-up leaves inside a transaction is soon used by another request.
    let orders = Orders::start_with(&[("ORDERS_DATABASE_CONNECTIONS", "3")]).await?;
    let url = format!("{}/orders", orders.url);
    let progress = Arc::new(Progress::default());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(run_client(orders.client.clone(), url.clone(), progress.clone()));
    }
    let mut acknowledged = HashSet::new();
    while let Some(client) = clients.join_next().await {
        acknowledged.extend(client??);
    }
    let hung_up = progress.hung_up.load(Ordering::SeqCst);
    assert!(
        acknowledged.len() > MIN_ACKNOWLEDGED && hung_up > MIN_HUNG_UP,
        "{} acknowledged, {hung_up} hung up",
        acknowledged.len()
    );

    // Orders whose clients hung up may still be in progress. Only a superuser sees what other sessions do.
    let mut admin = PgConnection::connect(&orders.database.admin_url()).await?;
    testbed::eventually("no session to be inside a transaction", DEADLINE, async || {
        let sql = "select count(*) from pg_stat_activity
                   where datname = current_database() and usename = 'orders'
                     and (state = 'active' or state like 'idle in transaction%')
                     and backend_type = 'client backend'";
        let busy: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await?;
        Ok((busy == 0).then_some(()))
    })
    .await?;
    let stored: HashSet<Uuid> = sqlx::query_scalar("select id from orders.orders")
        .fetch_all(&orders.auditor)
        .await?
        .into_iter()
        .collect();
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged orders are lost", lost.len(), acknowledged.len());
    let (placed, _, events) = orders.rows().await?;
    assert_eq!(placed, events, "an order without its event, or an event without its order");
    Ok(())
}
