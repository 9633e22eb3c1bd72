//! The order write: one commit for both, no `begin` to be cancelled, no notification inside.

use std::time::Duration;

use anyhow::{Result, ensure};
use load_tests::Saturation;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use uuid::Uuid;

use super::{
    super::Stage,
    Breach, Experiment, Setup,
    judge::judge,
    stage,
    strike::{Once, gone},
};

pub(super) static EXPERIMENTS: [Experiment; 3] = [
    Experiment {
        name: "cancellable-begin",
        invariants: &["I1", "I2"],
        fault: "a storm of clients that hang up at random moments",
        run: |setup| Box::pin(storm(setup)),
    },
    Experiment {
        name: "dual-write",
        invariants: &["I2"],
        fault: "the order service is killed after the order's commit",
        run: |setup| Box::pin(killed_after_order(setup)),
    },
    Experiment {
        name: "notify-in-transaction",
        invariants: &["speed"],
        fault: "64 connections, each with its next order at once",
        run: |setup| Box::pin(crowded(setup)),
    },
];

async fn killed_after_order(setup: Setup) -> Result<Option<Breach>> {
    let once = Once::new();
    let (stage, _vhost) = stage(setup.striking("order-written:kill", once.path())).await?;
    ensure!(stage.order().await.is_err(), "the process was to die before it answered");
    once.struck().await?;
    gone(&stage, "orders").await?;
    stage.revive().await?;
    stage.order().await?;
    judge(&stage).await
}

/// Steady clients with small orders, which wait for their answers, among fickle ones with larger orders, which never do.
async fn storm(setup: Setup) -> Result<Option<Breach>> {
    // Few connections, so that whatever a hang-up leaves behind is soon lent to somebody else.
    let (stage, _vhost) = stage(setup.with("ORDERS_DATABASE_CONNECTIONS", "6")).await?;
    // Whether a hang-up falls into the gap is a matter of luck.
    for _ in 0..3 {
        // Nobody answers meanwhile: the cores are for writing orders.
        stage.system.kill("inventory").await?;
        stage.system.kill("billing").await?;
        hang_up(&stage).await?;
        stage.revive().await?;
        let breach = judge(&stage).await?;
        if breach.is_some() {
            return Ok(breach);
        }
    }
    ensure!(stage.accepted() > 100, "only {} orders were accepted", stage.accepted());
    Ok(None)
}

async fn hang_up(stage: &Stage) -> Result<()> {
    let began = Instant::now();
    for _ in 0..20 {
        stage.order().await?;
    }
    // How long an order takes on this machine today, in microseconds.
    let usual = u64::try_from((began.elapsed() / 20).as_micros())?;
    let url = format!("{}/orders", stage.system.orders_url());
    let mut clients = JoinSet::new();
    for number in 0..16 {
        let (client, url) = (stage.client.clone(), url.clone());
        clients.spawn(async move {
            if number < 4 { steady(client, url).await } else { fickle(client, url, usual, number).await }
        });
    }
    while let Some(kept) = clients.join_next().await {
        for id in kept? {
            stage.note(id);
        }
    }
    Ok(())
}

const STORM: Duration = Duration::from_secs(3);

async fn steady(client: reqwest::Client, url: String) -> Vec<Uuid> {
    let mut acknowledged = vec![];
    let end = Instant::now() + STORM;
    while Instant::now() < end {
        let body = json!({ "customerId": Uuid::new_v4(), "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
        let order = async {
            let response = client.post(&url).json(&body).send().await.ok()?;
            let order: Value = response.json().await.ok()?;
            order["id"].as_str()?.parse::<Uuid>().ok()
        };
        acknowledged.extend(order.await);
    }
    acknowledged
}

/// Hangs up at any moment within about twice the time that an order takes. Nothing was promised to it.
async fn fickle(client: reqwest::Client, url: String, usual: u64, seed: u64) -> Vec<Uuid> {
    let mut random = fastrand::Rng::with_seed(seed);
    let end = Instant::now() + STORM;
    while Instant::now() < end {
        let body = json!({ "customerId": Uuid::new_v4(), "lines": [
            { "sku": "TEA-001", "quantity": 1 }, { "sku": "MUG-001", "quantity": 1 },
        ] });
        let patience = Duration::from_micros(random.u64(0..=2 * usual));
        let _ = timeout(patience, client.post(&url).json(&body).send()).await;
    }
    vec![]
}

/// Compares with a stage of its own that is whole, in turns: a rate by itself says more about the machine.
async fn crowded(setup: Setup) -> Result<Option<Breach>> {
    let (whole, _one) = stage(Setup { drill: true, ..Setup::default() }).await?;
    let (other, _two) = stage(setup).await?;
    for stage in [&whole, &other] {
        // Nobody answers: the cores are for writing orders.
        stage.system.kill("inventory").await?;
        stage.system.kill("billing").await?;
    }
    let (mut of_whole, mut of_other) = (0, 0);
    for _ in 0..3 {
        of_whole += accepted(&whole).await?;
        of_other += accepted(&other).await?;
    }
    ensure!(of_whole > 0, "nothing was accepted");
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let ratio = of_other as f64 / of_whole as f64;
    if ratio < 0.67 {
        return Ok(Breach::new("speed", format!("{ratio:.2} of the orders a second")));
    }
    Ok(None)
}

async fn accepted(stage: &Stage) -> Result<u64> {
    let url = stage.system.orders_url();
    let load = Saturation { url, connections: 64, for_: Duration::from_millis(1_500), seed: 1 };
    Ok(load_tests::saturate(load, |_| {}).await?.accepted)
}
