//! What only the primary has is not answered again: a fail-over would lose an order that a client has a 201 for.

use testbed::{commit_waits, release_commits, write_without_standby};

use crate::support::{Orders, order};

#[tokio::test]
async fn answer_is_repeated_only_when_the_synchronous_standby_has_the_order() -> anyhow::Result<()> {
    let server = testbed::Postgres::private().await?;
    let admin = server.admin_url("postgres");
    let orders = Orders::launch(testbed::database_on(&admin).await?, &[]).await?;
    orders.ready().await?;
    let body = order();
    let place =
        || orders.client.post(format!("{}/orders", orders.url)).header("idempotency-key", "k").json(&body);
    write_without_standby(&admin, place().send()).await?;
    assert_eq!(orders.rows().await?, (1, 1, 1), "the order must be visible");
    {
        let mut again = std::pin::pin!(orders.ask(place()));
        tokio::select! {
            _ = &mut again => anyhow::bail!("the answer did not wait for the standby"),
            waits = commit_waits(&admin) => waits?,
        }
        release_commits(&admin).await?;
        assert_eq!(again.await?.status, 201);
    }
    let placed = orders.ask(place()).await?;
    let id = placed.body["id"].as_str().unwrap_or_default();
    let cancel = || orders.client.post(format!("{}/orders/{id}/cancellation", orders.url));
    write_without_standby(&admin, cancel().send()).await?;
    let mut again = std::pin::pin!(orders.ask(cancel()));
    tokio::select! {
        _ = &mut again => anyhow::bail!("the answer did not wait for the standby"),
        waits = commit_waits(&admin) => waits?,
    }
    release_commits(&admin).await?;
    assert_eq!(again.await?.status, 200);
    Ok(())
}
