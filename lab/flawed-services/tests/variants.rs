//! Each variant places an order in its own way and serves the product's other routes. Without a broker: `lab/demo/tests`
//! runs the variants under faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails with a message")]

use std::process::Command;

use reqwest::Client;
use serde_json::{Value, json};
use sqlx::PgPool;
use testbed::{TestDatabase, TestService};
use uuid::Uuid;

struct Variant {
    service: TestService,
    client: Client,
    /// Connected as the auditor, which may read everything and write nothing.
    auditor: PgPool,
    _database: TestDatabase,
}

impl Variant {
    async fn start(variant: &str) -> anyhow::Result<Self> {
        let database = testbed::database().await?;
        let url = database.url("orders");
        let settings = [
            ("VARIANT", variant),
            ("ORDERS_DATABASE_URL", &url),
            // No process listens on port 1.
            ("ORDERS_AMQP_URL", "amqp://shop:shop@127.0.0.1:1/shop"),
        ];
        let program = Command::new(env!("CARGO_BIN_EXE_orders-variant"));
        let service = TestService::start(program, "ORDERS_", &settings)?;
        service.ready().await?;
        let auditor = PgPool::connect(&database.url("auditor")).await?;
        Ok(Self { service, client: Client::new(), auditor, _database: database })
    }

    /// Places an order of this many lines.
    async fn place(&self, lines: usize) -> Result<(u16, Value), reqwest::Error> {
        let skus = ["TEA-001", "TEA-002", "MUG-001"];
        let lines: Vec<_> = skus[..lines].iter().map(|sku| json!({ "sku": sku, "quantity": 1 })).collect();
        let order = json!({ "customerId": Uuid::new_v4(), "lines": lines });
        let answer = self.client.post(format!("{}/orders", self.service.url())).json(&order).send().await?;
        Ok((answer.status().as_u16(), answer.json().await.unwrap_or_default()))
    }

    /// The numbers of orders, lines and events.
    async fn rows(&self) -> anyhow::Result<(i64, i64, i64)> {
        let sql = "select (select count(*) from orders.orders), (select count(*) from orders.order_lines),
                          (select count(*) from orders.outbox)";
        Ok(sqlx::query_as(sql).fetch_one(&self.auditor).await?)
    }
}

#[tokio::test]
async fn each_variant_writes_orders_in_its_own_way() -> anyhow::Result<()> {
    for (name, status, rows) in [
        // The event is lost: there is no broker.
        ("dual-write", 201, (2, 4, 0)),
        ("publish-then-commit", 503, (0, 0, 0)),
        ("notify-in-transaction", 201, (2, 4, 2)),
        ("cancellable-begin", 201, (2, 4, 2)),
        ("wake-before-commit", 201, (2, 4, 2)),
    ] {
        let variant = Variant::start(name).await?;
        for lines in [1, 3] {
            let (answered, body) = variant.place(lines).await?;
            assert_eq!(answered, status, "{name}: {body}");
            assert_eq!(body["id"].is_string(), status == 201, "{name}: {body}");
        }
        assert_eq!(variant.rows().await?, rows, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn other_routes_are_those_of_the_order_service() -> anyhow::Result<()> {
    let variant = Variant::start("notify-in-transaction").await?;
    let id = variant.place(2).await?.1["id"].as_str().unwrap().to_owned();
    let get = async |path: &str| {
        let answer = variant.client.get(format!("{}{path}", variant.service.url())).send().await?;
        anyhow::Ok((answer.status().as_u16(), answer.json::<Value>().await?))
    };
    let (status, order) = get(&format!("/orders/{id}")).await?;
    assert_eq!((status, &order["id"], &order["status"]), (200, &json!(id), &json!("pending")));
    assert_eq!(order["history"][0]["type"], "OrderCreated");
    let (status, listed) = get("/orders?limit=1").await?;
    assert_eq!((status, &listed["orders"][0]["id"]), (200, &json!(id)));
    let cancellation = format!("{}/orders/{id}/cancellation", variant.service.url());
    assert_eq!(variant.client.post(cancellation).send().await?.status(), 200);
    assert_eq!(get(&format!("/orders/{id}")).await?.1["status"], "cancelled");
    let (status, problem) = get("/nothing").await?;
    assert_eq!((status, &problem["type"]), (404, &json!("urn:shop:problem:not-found")));
    Ok(())
}

#[test]
fn unknown_variant_is_refused_with_one_line() {
    for variant in ["", "single-write"] {
        let output = Command::new(env!("CARGO_BIN_EXE_orders-variant"))
            .env("VARIANT", variant)
            .env("ORDERS_DATABASE_URL", "postgres://orders:s3cret@127.0.0.1:1/shop")
            .env("ORDERS_AMQP_URL", "amqp://shop:s3cret@127.0.0.1:1/shop")
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{variant}: {stderr}");
        assert!(stderr.contains("VARIANT") && stderr.lines().count() == 1, "{variant}: {stderr}");
    }
}
