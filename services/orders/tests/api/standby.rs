//! What only the primary has is not answered again: a fail-over would lose an order that a client has a 201 for.

use reqwest::RequestBuilder;
use sqlx::{Connection as _, PgConnection};
use testbed::{
    commit_waits, eventually, hang_commits, release_commits, waits_for_standby, write_without_standby,
};

use crate::support::{DEADLINE, Orders, order};

#[tokio::test]
async fn answer_is_repeated_only_when_the_synchronous_standby_has_the_order() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    // A relay's commits would wait, too.
    let no_relay = [("ORDERS_RELAY_WORKERS", "0")];
    let orders = Orders::launch(testbed::database_on(&admin).await?, &no_relay).await?;
    orders.service.ready().await?;
    let body = order();
    // Where the machine is slow, health says for a moment that commits hang, and the service begins no write then.
    let answer = async |request: RequestBuilder| {
        orders.service.ready().await?;
        orders.ask(request).await
    };
    let place =
        || orders.client.post(format!("{}/orders", orders.url)).header("idempotency-key", "k").json(&body);
    write_without_standby(&admin, answer(place())).await?;
    assert_eq!(orders.rows().await?, (1, 1, 1), "the order must be visible");
    {
        let mut again = std::pin::pin!(answer(place()));
        waits_for_standby(&admin, again.as_mut()).await?;
        release_commits(&admin).await?;
        assert_eq!(again.await?.status, 201);
    }
    let placed = answer(place()).await?;
    let id = placed.body["id"].as_str().unwrap_or_default();
    let cancel = || orders.client.post(format!("{}/orders/{id}/cancellation", orders.url));
    write_without_standby(&admin, answer(cancel())).await?;
    let mut again = std::pin::pin!(answer(cancel()));
    waits_for_standby(&admin, again.as_mut()).await?;
    release_commits(&admin).await?;
    assert_eq!(again.await?.status, 200);
    Ok(())
}

/// The server keeps a session whose commit waits, however soon its client gives it up.
#[tokio::test]
async fn no_more_sessions_wait_once_health_says_that_commits_hang() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    let orders = Orders::launch(testbed::database_on(&admin).await?, &[]).await?;
    orders.service.ready().await?;
    hang_commits(&admin).await?;
    orders.service.ready().await?;
    tokio::spawn(orders.client.post(format!("{}/orders", orders.url)).json(&order()).send());
    commit_waits(&admin).await?;
    eventually("health to say that commits hang", DEADLINE, async || {
        Ok((orders.get("/readyz").await?.0 == 503).then_some(()))
    })
    .await?;
    let mut administrator = PgConnection::connect(&admin).await?;
    let mut waiting = async || {
        let waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'";
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut administrator).await
    };
    let before = waiting().await?;
    for _ in 0..20 {
        assert_eq!(orders.post(&order()).await?.0, 503);
    }
    assert_eq!(orders.get("/products").await?.0, 200, "reads go on");
    assert_eq!(waiting().await?, before, "sessions that wait");
    release_commits(&admin).await?;
    orders.service.ready().await?;
    assert_eq!(orders.post(&order()).await?.0, 201);
    Ok(())
}
