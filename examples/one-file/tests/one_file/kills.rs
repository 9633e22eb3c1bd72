//! PostgreSQL, RabbitMQ and the program are killed with SIGKILL while orders are placed.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use testbed::{Postgres, Rabbitmq, eventually};
use tokio::{task::JoinSet, time::sleep};
use uuid::Uuid;

use crate::program::{DEADLINE, Program};

const CLIENTS: usize = 4;

/// What the clients have seen.
#[derive(Default)]
struct Answers {
    accepted: Mutex<Vec<Uuid>>,
    failed: AtomicUsize,
}

impl Answers {
    /// Waits until so many more orders are accepted.
    async fn more(&self, count: usize) -> Result<()> {
        let enough = self.accepted.lock().unwrap().len() + count;
        eventually("orders to be accepted", DEADLINE, async || {
            Ok((self.accepted.lock().unwrap().len() >= enough).then_some(()))
        })
        .await
    }

    /// Waits until a request has failed.
    async fn failure(&self) -> Result<()> {
        let before = self.failed.load(Relaxed);
        eventually("a request to fail", DEADLINE, async || {
            Ok((self.failed.load(Relaxed) > before).then_some(()))
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_accepted_order_has_one_reservation_whatever_is_killed() -> Result<()> {
    let (postgres, rabbitmq) = tokio::try_join!(Postgres::private(), Rabbitmq::private())?;
    let program = Program::start("kills", &postgres.admin_url("postgres"), &rabbitmq.url())?;
    let (program, answers) = (Arc::new(program), Arc::new(Answers::default()));
    program.first_order().await?;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (program, answers) = (program.clone(), answers.clone());
        clients.spawn(async move {
            loop {
                match program.order().await {
                    Ok(order) => answers.accepted.lock().unwrap().push(order),
                    Err(_) => {
                        answers.failed.fetch_add(1, Relaxed);
                        sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
    }

    answers.more(50).await?;
    program.process.kill().await?;
    answers.failure().await?;
    program.process.start()?;
    answers.more(50).await?;

    // RabbitMQ 3.10, killed within seconds of a quorum queue's creation, comes back without a leader for it, for good. Nothing
    // shows when that time is over.
    sleep(Duration::from_secs(10)).await;
    // Orders are accepted without a broker.
    rabbitmq.kill().await?;
    answers.more(50).await?;
    let pending = "select count(*) from one_file.outbox where published_at is null";
    let pending: Vec<i64> = program.read(pending).await?;
    ensure!(pending[0] >= 50 - i64::try_from(CLIENTS)?, "published without a broker: {pending:?}");
    rabbitmq.start().await?;
    answers.more(50).await?;

    postgres.kill().await?;
    answers.failure().await?;
    postgres.start().await?;
    answers.more(50).await?;

    // All three.
    rabbitmq.kill().await?;
    program.process.kill().await?;
    postgres.kill().await?;
    answers.failure().await?;
    program.process.start()?;
    rabbitmq.start().await?;
    postgres.start().await?;
    answers.more(50).await?;

    clients.shutdown().await;
    program.settle().await?;
    program.drain().await?;
    let orders: Vec<Uuid> = program.read("select id from one_file.orders order by id").await?;
    let mut reservations: Vec<Uuid> = program.read("select order_id from one_file.reservations").await?;
    reservations.sort_unstable();
    assert_eq!(reservations, orders, "an order has no reservation, or two, or a reservation has no order");
    let accepted = answers.accepted.lock().unwrap();
    let lost: Vec<_> = accepted.iter().filter(|order| orders.binary_search(order).is_err()).collect();
    assert!(lost.is_empty(), "accepted and lost: {lost:?}");
    Ok(())
}
