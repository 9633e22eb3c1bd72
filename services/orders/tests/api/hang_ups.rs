//! Clients that hang up at random moments. A handler is dropped when its client leaves, wherever it is; with a `BEGIN`
//! in it, that would lose other clients' acknowledged orders, and no error would be seen by anybody.

use std::{collections::HashSet, time::Duration};

use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{Orders, order};

#[tokio::test]
async fn a_storm_of_hang_ups_loses_nothing_that_was_acknowledged() -> anyhow::Result<()> {
    // Few connections, so that whatever a hang-up leaves behind is soon lent to somebody else.
    let orders = Orders::start_with(&[("ORDERS_DATABASE_CONNECTIONS", "3")]).await?;
    let url = format!("{}/orders", orders.url);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (client, url) = (orders.client.clone(), url.clone());
        clients.spawn(async move {
            let mut acknowledged = vec![];
            let mut hung_up = 0;
            for number in 0..150 {
                let sent = client.post(&url).json(&order()).send();
                // Every third client stays; the others leave within the time that an order takes, more or less.
                let patience = if number % 3 == 0 { 5_000_000 } else { fastrand::u64(50..4_000) };
                match tokio::time::timeout(Duration::from_micros(patience), sent).await {
                    Ok(Ok(response)) if response.status() == 201 => {
                        let body: serde_json::Value = response.json().await.unwrap();
                        acknowledged.push(body["id"].as_str().unwrap().parse::<Uuid>().unwrap());
                    }
                    Ok(_) => {}
                    Err(_) => hung_up += 1,
                }
            }
            (acknowledged, hung_up)
        });
    }
    let (mut acknowledged, mut hung_up) = (HashSet::new(), 0);
    while let Some(client) = clients.join_next().await {
        let (ids, left) = client?;
        acknowledged.extend(ids);
        hung_up += left;
    }
    assert!(acknowledged.len() > 500 && hung_up > 200, "{} stayed, {hung_up} left", acknowledged.len());

    // The end of an order that was cut off may still be under way.
    // As the administrator: others are not shown what somebody else's session does.
    let mut admin = PgConnection::connect(&orders.database.admin_url()).await?;
    testbed::eventually("no session to be inside a transaction", Duration::from_secs(5), async || {
        let sql = "select count(*) from pg_stat_activity
                   where datname = current_database() and usename = 'orders' and state like 'idle in transaction%'";
        let idle: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await?;
        Ok((idle == 0).then_some(()))
    })
    .await?;
    let stored: HashSet<Uuid> = sqlx::query_scalar("select id from orders.orders")
        .fetch_all(&orders.auditor)
        .await?
        .into_iter()
        .collect();
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged orders are gone", lost.len(), acknowledged.len());
    let (placed, _, events) = orders.rows().await?;
    assert_eq!(placed, events, "an order without its event, or an event without its order");
    Ok(())
}
