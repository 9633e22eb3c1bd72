use std::collections::HashSet;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::support::{DEADLINE, Orders, order};

#[tokio::test]
async fn order_is_accepted_priced_and_can_be_read() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let customer = Uuid::new_v4();
    let request = json!({ "customerId": customer, "lines": [
        { "sku": "TEA-001", "quantity": 2 }, { "sku": "POT-001", "quantity": 1 },
    ] });
    let response = orders.client.post(format!("{}/orders", orders.url)).json(&request).send().await?;
    assert_eq!(response.status(), 201);
    let location = response.headers()["location"].to_str()?.to_owned();
    let placed: Value = response.json().await?;
    assert_eq!(location, format!("/orders/{}", placed["id"].as_str().unwrap()));
    assert_eq!(placed["status"], "pending");
    assert_eq!(placed["total"], json!({ "amount": 2 * 625 + 6900, "currency": "EUR" }));

    let (status, found) = orders.get(&location).await?;
    assert_eq!(status, 200);
    for field in ["id", "customerId", "status", "total", "lines"] {
        assert_eq!(found[field], placed[field], "{field}");
    }
    let history = found["history"].as_array().unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!((&history[0]["type"], &history[0]["sequence"]), (&json!("OrderCreated"), &json!(1)));
    assert_eq!(history[0]["publishedAt"], Value::Null, "there is no broker");
    Ok(())
}

#[tokio::test]
async fn every_listed_product_can_be_ordered_for_its_price() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let (status, catalogue) = orders.get("/products").await?;
    assert_eq!(status, 200);
    let products = catalogue["products"].as_array().unwrap();
    assert!(products.len() > 5, "{catalogue}");
    for product in products {
        let line = json!({ "sku": product["sku"], "quantity": 1 });
        let (status, placed) = orders.post(&json!({ "customerId": Uuid::new_v4(), "lines": [line] })).await?;
        assert_eq!((status, &placed["total"]), (201, &product["unitPrice"]), "{product}");
    }
    Ok(())
}

/// An empty catalogue is being loaded: it refuses no order for good.
#[tokio::test]
async fn product_that_is_added_while_the_service_runs_can_be_ordered() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let mut owner = PgConnection::connect(&orders.database.url("orders")).await?;
    sqlx::raw_sql("create table kept as table products; delete from products").execute(&mut owner).await?;
    assert_eq!(orders.post(&order()).await?.0, 503);
    sqlx::raw_sql("insert into products select * from kept").execute(&mut owner).await?;
    orders.place().await?;
    let line = json!({ "sku": "NEW-001", "quantity": 3 });
    let new = json!({ "customerId": Uuid::new_v4(), "lines": [line] });
    assert_eq!(orders.post(&new).await?.0, 422);
    sqlx::raw_sql("insert into products values ('NEW-001', 'New', 700, 'EUR')").execute(&mut owner).await?;
    let placed = testbed::eventually("the new product to be found", DEADLINE, async || {
        let (status, placed) = orders.post(&new).await?;
        Ok((status == 201).then_some(placed))
    });
    assert_eq!(placed.await?["total"]["amount"], 2100);
    Ok(())
}

#[tokio::test]
async fn trace_of_the_request_is_in_the_event() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let trace_id = "0af7651916cd43dd8448eb211c80319c";
    let request = orders.client.post(format!("{}/orders", orders.url)).json(&order());
    let response = request.header("traceparent", format!("00-{trace_id}-b7ad6b7169203331-01")).send().await?;
    assert_eq!(response.status(), 201);
    let sql = "select headers ->> 'traceparent', payload ->> 'traceparent' from orders.outbox";
    let (header, body): (String, String) = sqlx::query_as(sql).fetch_one(&orders.auditor).await?;
    assert!(header.contains(trace_id), "{header}");
    assert_eq!(header, body);
    Ok(())
}

#[tokio::test]
async fn orders_are_listed_newest_first_in_pages_without_gaps() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let mut placed = vec![];
    for _ in 0..25 {
        placed.push(orders.post(&order()).await?.1["id"].clone());
    }
    placed.reverse();
    let mut listed = vec![];
    let mut page = "/orders?limit=10".to_owned();
    loop {
        let (status, body) = orders.get(&page).await?;
        assert_eq!(status, 200);
        listed.extend(body["orders"].as_array().unwrap().iter().map(|order| order["id"].clone()));
        let Some(next) = body["next"].as_str() else { break };
        page = format!("/orders?limit=10&after={next}");
    }
    // Within one millisecond the order of ids is not the order of placing: compare as sets, and check the order of ids.
    assert_eq!(listed.len(), placed.len());
    assert_eq!(listed.iter().collect::<HashSet<_>>(), placed.iter().collect());
    assert!(listed.windows(2).all(|pair| pair[0].as_str() > pair[1].as_str()));
    Ok(())
}

#[tokio::test]
async fn health_and_metrics_show_the_unavailable_broker_and_orders_are_accepted() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    orders.post(&order()).await?;
    let (status, health) = orders.get("/readyz").await?;
    assert_eq!(status, 200);
    assert_eq!(health["parts"]["database"]["up"], true);
    assert_eq!(health["parts"]["broker"]["up"], false);
    assert!(health["parts"]["broker"]["reason"].is_string(), "{health}");
    testbed::eventually("the backlog to be counted", DEADLINE, async || {
        let metrics = orders.client.get(format!("{}/metrics", orders.url)).send().await?.text().await?;
        let shown = metrics.lines().any(|line| line == "outbox_pending 1");
        Ok((shown && metrics.contains("broker_connected{role=\"publisher\"} 0")).then_some(()))
    })
    .await
}

#[tokio::test]
async fn routes_answer_503_until_the_database_is_migrated() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let mut admin = PgConnection::connect(&database.admin_url()).await?;
    // The migration that creates this table waits.
    let mut migrating = admin.begin().await?;
    sqlx::query("create table orders.orders ()").execute(&mut *migrating).await?;
    let orders = Orders::launch(database, &[]).await?;
    testbed::eventually("the service to listen", DEADLINE, async || {
        Ok(orders.client.get(format!("{}/livez", orders.url)).send().await.ok())
    })
    .await?;
    for path in ["/orders", "/products", "/orders/0190a1b2-0000-7000-8000-000000000001"] {
        let answer = orders.client.get(format!("{}{path}", orders.url)).send().await?;
        assert_eq!(answer.status(), 503, "{path}");
        assert!(answer.headers().contains_key("retry-after"), "{path}");
    }
    assert_eq!(orders.post(&order()).await?.0, 503);
    migrating.rollback().await?;
    orders.service.ready().await?;
    assert_eq!(orders.get("/orders").await?.0, 200);
    Ok(())
}
