//! The soak: four order services, two of each consumer, orders that another instance cancels at once, one order in a hundred
//! that inventory and billing cannot apply before a defect is repaired at the end, and a process or a server that is killed
//! every few seconds.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use load_tests::{Load, Summary};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use testbed::{DatabaseUrls, Instances, Passwords, Postgres, Rabbitmq};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{
    stage::{CONDITION_DEADLINE, Setup, Stage},
    tap::{Published, Tap},
};
use crate::reconciliation::{Ending, Reconciliation, Wait, settle};

const ORDER_SERVICES: u32 = 4;

/// Makes inventory and billing fail for good over the same one in a hundred orders.
const DEFECT: &str = "
    create function public.refuse() returns trigger language plpgsql as $$
    begin
        if abs(hashtext(new.order_id::text)) % 100 = 0 then
            raise exception 'a defect' using errcode = 'check_violation';
        end if;
        return new;
    end $$;
    create trigger defect before insert on inventory.reservations for each row execute function public.refuse();
    create trigger defect before insert on billing.payments for each row execute function public.refuse();";

const REPAIR: &str = "
    drop trigger defect on inventory.reservations; drop trigger defect on billing.payments";

/// RabbitMQ 3.10, killed and started again within a second or two, may come back without a leader for a queue.
const BROKER_PAUSE: Duration = Duration::from_secs(3);

/// Bounds the loop over pages, in case a service never answers with the last one.
const MAX_PAGES: usize = 100;
/// The pause between two kills, in milliseconds.
const PAUSE: Range<u64> = 1_500..5_000;
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
const CANCEL_DEADLINE: Duration = Duration::from_secs(5);

/// A soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// How long the load lasts.
    pub for_: Duration,
    /// Orders per second, over all instances.
    pub rate: u32,
    /// The same seed kills the same processes and servers in the same order. How long each takes to start again differs.
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub struct SoakResult {
    /// At the end.
    pub reconciliation: Reconciliation,
    /// What the broker received.
    pub published: Published,
    /// How many processes and servers were killed.
    pub kills: u32,
    /// How many dead letters there were at the end, with those behind others, and how many of them a replay applied.
    pub dead_letters: u64,
    pub replayed: usize,
    /// Cancellations that were answered with 200.
    pub cancelled: u64,
}

impl Soak {
    /// Starts a system for it, and passes a line to `print` now and then.
    ///
    /// # Errors
    /// When the system cannot be set up, or something is still pending long after the last kill. What is wrong is not
    /// an error, but part of the result.
    pub async fn run(self, print: impl Fn(String)) -> Result<SoakResult> {
        let (postgres, broker) = (Postgres::private().await?, Rabbitmq::private().await?);
        let passwords = Passwords::all("soak");
        testbed::bootstrap(&postgres.admin_url("postgres"), &passwords).await?;
        let urls = DatabaseUrls::new(&postgres.admin_url("postgres"), &passwords)?;
        let instances = Instances { orders: ORDER_SERVICES as usize, inventory: 2, billing: 2 };
        let setup = Setup { instances, ..Setup::default() };
        let stage = Stage::start_with(&urls, &broker.url(), setup).await?;
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
        let admin_url = postgres.admin_url("postgres");
        execute(&admin_url, DEFECT).await?;
        let mut tap = Tap::at(&broker.api_url(), "shop").await?;
        let SoakLoad { loads, cancelling, cancelled } = self.load(&stage)?;

        let mut random = fastrand::Rng::with_seed(self.seed);
        let processes = stage.system.names().map(str::to_owned);
        let names: Vec<_> = processes.chain([POSTGRES, RABBITMQ].map(str::to_owned)).collect();
        let (end, began) = (Instant::now() + self.for_, Instant::now());
        let (mut kills, mut printed) = (0, Instant::now());
        while Instant::now() < end {
            match names[random.usize(..names.len())].as_str() {
                POSTGRES => {
                    postgres.kill().await?;
                    postgres.start().await?;
                }
                RABBITMQ => {
                    broker.kill().await?;
                    sleep(BROKER_PAUSE).await;
                    broker.start().await?;
                }
                process => {
                    stage.system.kill(process).await?;
                    stage.system.start_again(process).await?;
                }
            }
            kills += 1;
            let published = tap.drain().await?;
            if printed.elapsed() > REPORT_INTERVAL {
                printed = Instant::now();
                print(format!(
                    "  {:5.0} s  {} orders, {} cancelled, {} messages ({} copies, {} out of order), {kills} killed",
                    began.elapsed().as_secs_f64(),
                    stage.accepted(),
                    cancelled.load(Ordering::Relaxed),
                    published.messages,
                    published.copies,
                    published.out_of_order.len(),
                ));
            }
            sleep(Duration::from_millis(random.u64(PAUSE))).await;
        }
        for load in loads {
            load.await?.context("the load generator failed")?;
        }
        cancelling.await?;
        stage.revive().await?;
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
        // Everything that can be applied is, before the defect is repaired: what is replayed then comes last.
        let applied =
            settle(Wait::until_decided(CONDITION_DEADLINE), async || stage.reconcile().await).await?;
        let dead_letters = applied.reconciliation.waiting_for_operator();
        execute(&admin_url, REPAIR).await?;
        let replayed = replay(&stage).await?;
        let wait = Wait::until_decided(CONDITION_DEADLINE);
        let settled = settle(wait, async || stage.reconcile().await).await?;
        let reconciliation = settled.reconciliation;
        ensure!(settled.ending != Ending::DeadlinePassed, "still in progress: {reconciliation:?}");
        let published = tap.drain().await?.clone();
        let cancelled = cancelled.load(Ordering::Relaxed);
        Ok(SoakResult { reconciliation, published, kills, dead_letters, replayed, cancelled })
    }

    /// Starts a load on each order service, and a task that cancels every other order at once.
    fn load(self, stage: &Stage) -> Result<SoakLoad> {
        let names = stage.system.names().filter(|name| name.starts_with("orders"));
        let urls = names.map(|name| Ok(stage.system.url(name)?.to_owned())).collect::<Result<Vec<_>>>()?;
        let (accepted, mut to_cancel) = mpsc::unbounded_channel::<Uuid>();
        let start = |url: &String| {
            let load = Load::new(url.clone(), (self.rate / ORDER_SERVICES).max(1), self.for_);
            let accepted = accepted.clone();
            // Sending fails only after the task that cancels has ended.
            let recorder = stage.recorder(move |id| _ = accepted.send(id));
            tokio::spawn(load_tests::run(load, recorder))
        };
        let loads = urls.iter().map(start).collect();
        drop(accepted);
        let cancelled = Arc::new(AtomicU64::new(0));
        let (client, count) = (stage.client.clone(), cancelled.clone());
        let cancelling = tokio::spawn(async move {
            let mut number = 0;
            while let Some(id) = to_cancel.recv().await {
                number += 1;
                if number % 2 == 0 {
                    let url = format!("{}/orders/{id}/cancellation", urls[number / 2 % urls.len()]);
                    let answer = client.post(url).timeout(CANCEL_DEADLINE).send().await;
                    let accepted = answer.is_ok_and(|answer| answer.status() == 200);
                    count.fetch_add(u64::from(accepted), Ordering::Relaxed);
                }
            }
        });
        Ok(SoakLoad { loads, cancelling, cancelled })
    }
}

struct SoakLoad {
    loads: Vec<JoinHandle<Result<Summary>>>,
    /// Ends after the loads.
    cancelling: JoinHandle<()>,
    /// Cancellations that were answered with 200 so far.
    cancelled: Arc<AtomicU64>,
}

const POSTGRES: &str = "PostgreSQL";
const RABBITMQ: &str = "RabbitMQ";

/// Executes statements as an administrator.
async fn execute(admin_url: &str, statements: &'static str) -> Result<()> {
    let mut admin = PgConnection::connect(admin_url).await?;
    sqlx::raw_sql(statements).execute(&mut admin).await?;
    Ok(())
}

/// Replays all dead letters of inventory and billing. Returns how many were applied.
async fn replay(stage: &Stage) -> Result<usize> {
    let mut applied = 0;
    for service in ["inventory", "billing"] {
        let mut after = json!(0);
        for _ in 0..MAX_PAGES {
            let body = json!({ "all": true, "after": after });
            let page = stage.admin(service, "/admin/dead-letters/replay", Some(body)).await?;
            let items = page["items"].as_array().context("a page has no items")?;
            applied += items.iter().filter(|item| item["outcome"] == "applied").count();
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
    }
    Ok(applied)
}
