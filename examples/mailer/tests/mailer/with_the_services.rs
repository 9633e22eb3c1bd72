//! The mailer beside the three services.

use anyhow::ensure;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{Setup, System, SystemOptions, eventually};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    process::Mailer,
    support::{DEADLINE, MailerDatabase},
};

struct Services {
    system: System,
    auditor: PgPool,
}

impl Services {
    async fn start(database: &MailerDatabase, amqp_url: &str) -> anyhow::Result<Self> {
        let system =
            System::start(SystemOptions::new(database.database.urls().clone(), amqp_url, Setup::default()))
                .await?;
        system.wait_ready(DEADLINE).await?;
        Ok(Self { system, auditor: PgPool::connect(&database.database.url("auditor")).await? })
    }

    /// Places orders. Every third customer has no money.
    async fn place(&self, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            let mut customer = Uuid::new_v4().to_string();
            if number % 3 == 0 {
                customer.replace_range(..8, "dec11ed0");
            }
            let order = json!({ "customerId": customer, "lines": [{ "sku": "TEA-001", "quantity": 1 }] });
            send(Client::new().post(format!("{}/orders", self.system.orders_url())), &order).await?;
        }
        Ok(())
    }

    /// Makes the order service publish the events of the last hour again.
    async fn replay(&self) -> anyhow::Result<()> {
        let moment = |at: OffsetDateTime| at.format(&Rfc3339);
        let now = OffsetDateTime::now_utc();
        let period = json!({ "from": moment(now - Duration::HOUR)?, "to": moment(now + Duration::HOUR)? });
        let url = format!("{}/admin/published/replay", self.system.admin_url("orders")?);
        send(Client::new().post(url).bearer_auth(self.system.admin_token()), &period).await
    }

    /// Waits until this many orders have ended and all their events are published, and returns how each has ended.
    async fn ends(&self, count: usize) -> anyhow::Result<Vec<(Uuid, String)>> {
        eventually("all orders to end", DEADLINE, async || {
            let query =
                sqlx::query_as("select id, status from orders where status in ('confirmed', 'cancelled')");
            let ends: Vec<(Uuid, String)> = query.fetch_all(&self.auditor).await?;
            ensure!(ends.len() == count, "{} of {count}", ends.len());
            let pending: i64 =
                sqlx::query_scalar("select count(*) from orders.outbox where published_at is null")
                    .fetch_one(&self.auditor)
                    .await?;
            ensure!(pending == 0, "{pending} events are pending");
            Ok(Some(ends))
        })
        .await
    }
}

async fn send(request: RequestBuilder, body: &Value) -> anyhow::Result<()> {
    let answer = request.json(body).send().await?;
    let (status, text) = (answer.status(), answer.text().await?);
    ensure!(status.is_success(), "{status}: {text}");
    Ok(())
}

#[tokio::test]
async fn every_order_that_ends_has_one_mail_after_a_kill_and_a_replay_adds_earlier_ones() -> anyhow::Result<()>
{
    let (database, vhost) = (MailerDatabase::create().await?, testbed::vhost().await?);
    let services = Services::start(&database, &vhost.url()).await?;
    // Before the mailer's first start it has no queue, so the broker keeps no event for it.
    services.place(3).await?;
    let missed = services.ends(3).await?;

    let mailer = Mailer::start(&database, &vhost.url()).await?;
    services.place(20).await?;
    eventually("the first mail to be written", DEADLINE, async || {
        Ok((!database.mails().await?.is_empty()).then_some(()))
    })
    .await?;
    mailer.service.kill().await?;
    services.place(20).await?;
    let all = services.ends(43).await?;
    let _restarted = Mailer::start(&database, &vhost.url()).await?;
    let received: Vec<_> = all.iter().filter(|end| !missed.contains(end)).cloned().collect();
    database.wait_for_mails(&received).await?;

    services.replay().await?;
    database.wait_for_mails(&all).await
}
