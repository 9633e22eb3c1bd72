//! The mailer as a guest of the three services.

use anyhow::ensure;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{System, SystemOptions, eventually};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    process::Mailer,
    room::{PATIENCE, Room},
};

struct Shop {
    system: System,
    auditor: PgPool,
}

impl Shop {
    async fn open(room: &Room, amqp_url: &str) -> anyhow::Result<Self> {
        let system = System::start(SystemOptions::new(room.database.urls().clone(), amqp_url)).await?;
        system.wait_ready(PATIENCE).await?;
        Ok(Self { system, auditor: PgPool::connect(&room.database.url("auditor")).await? })
    }

    /// Every third of them is by somebody without money.
    async fn place(&self, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            let mut customer = Uuid::new_v4().to_string();
            if number % 3 == 0 {
                customer.replace_range(..8, "dec11ed0");
            }
            let order = json!({ "customerId": customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
            self.ask(Client::new().post(format!("{}/orders", self.system.orders_url())), &order).await?;
        }
        Ok(())
    }

    /// Has the order service publish once more what it has published in the last hour.
    async fn replay(&self) -> anyhow::Result<()> {
        let moment = |at: OffsetDateTime| at.format(&Rfc3339);
        let now = OffsetDateTime::now_utc();
        let period = json!({ "from": moment(now - Duration::HOUR)?, "to": moment(now + Duration::HOUR)? });
        let url = format!("{}/admin/published/replay", self.system.admin_url("orders")?);
        self.ask(Client::new().post(url).bearer_auth(self.system.admin_token()), &period).await
    }

    async fn ask(&self, request: RequestBuilder, body: &Value) -> anyhow::Result<()> {
        let answer = request.json(body).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{status}: {text}");
        Ok(())
    }

    /// Waits until so many orders have come to their end and everybody has been told, and returns which end that is.
    async fn ends(&self, count: usize) -> anyhow::Result<Vec<(Uuid, String)>> {
        eventually("all orders to end", PATIENCE, async || {
            let query =
                sqlx::query_as("select id, status from orders where status in ('confirmed', 'cancelled')");
            let ends: Vec<(Uuid, String)> = query.fetch_all(&self.auditor).await?;
            ensure!(ends.len() == count, "{} of {count}", ends.len());
            let owed: i64 =
                sqlx::query_scalar("select count(*) from orders.outbox where published_at is null")
                    .fetch_one(&self.auditor)
                    .await?;
            ensure!(owed == 0, "{owed} events are still to be published");
            Ok(Some(ends))
        })
        .await
    }
}

#[tokio::test]
async fn every_order_that_ends_has_one_mail_whoever_is_killed_and_a_replay_brings_what_came_before()
-> anyhow::Result<()> {
    let (room, vhost) = (Room::new().await?, testbed::vhost().await?);
    let shop = Shop::open(&room, &vhost.url()).await?;
    // Before the mailer's first start there is no queue that would keep anything for it.
    shop.place(3).await?;
    let missed = shop.ends(3).await?;

    let mailer = Mailer::start(&room, &vhost.url()).await?;
    shop.place(20).await?;
    eventually("it to be in the middle of it", PATIENCE, async || {
        Ok((!room.mails().await?.is_empty()).then_some(()))
    })
    .await?;
    mailer.kill().await?;
    shop.place(20).await?;
    let all = shop.ends(43).await?;
    let _heir = Mailer::start(&room, &vhost.url()).await?;
    let heard: Vec<_> = all.iter().filter(|end| !missed.contains(end)).cloned().collect();
    room.has(&heard).await?;

    shop.replay().await?;
    room.has(&all).await
}
