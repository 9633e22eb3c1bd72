//! The operators' door: closed without the token, apart from the public one, and what is behind it.

use std::net::TcpListener;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::{Orders, order};

const TOKEN: &str = "sixteen-letters-and-more";

struct Door {
    orders: Orders,
    url: String,
}

impl Door {
    async fn open() -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let settings = [("ORDERS_ADMIN_ADDRESS", address.as_str()), ("ORDERS_ADMIN_TOKEN", TOKEN)];
        let orders = Orders::start_with(&settings).await?;
        Ok(Self { orders, url: format!("http://{address}") })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.orders.client.request(method, format!("{}{path}", self.url))
    }

    async fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        let answer = self.request(Method::GET, path).bearer_auth(TOKEN).send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<(u16, Value)> {
        let answer = self.request(Method::POST, path).bearer_auth(TOKEN).json(&body).send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    /// Places an order and parks its event, as ten refusals would. Returns the order and the event.
    async fn parked(&self, days_old: i32) -> anyhow::Result<(Uuid, Uuid)> {
        let (status, placed) = self.orders.post(&order()).await?;
        assert_eq!(status, 201);
        let id: Uuid = serde_json::from_value(placed["id"].clone())?;
        let pool = PgPool::connect(&self.orders.database.url("orders")).await?;
        let event = sqlx::query_scalar(
            "update outbox set attempts = 10, last_error = 'no queue is bound for it', parked_at = clock_timestamp(),
                               created_at = created_at - make_interval(days => $2)
             where aggregate_id = $1 returning event_id",
        );
        Ok((id, event.bind(id).bind(days_old).fetch_one(&pool).await?))
    }
}

#[tokio::test]
async fn without_the_right_token_nobody_gets_in_and_the_public_port_has_no_such_door() -> anyhow::Result<()> {
    let door = Door::open().await?;
    let wrong = [
        None,
        Some("Bearer "),
        Some("Bearer sixteen-letters-and-mor"),
        Some("Bearer sixteen-letters-and-more-"),
        Some("Basic sixteen-letters-and-more"),
        Some("sixteen-letters-and-more"),
    ];
    for path in ["/admin/parked", "/admin/nothing", "/"] {
        for header in wrong {
            let request = door.request(Method::GET, path);
            let request = match header {
                Some(header) => request.header("authorization", header),
                None => request,
            };
            let answer = request.send().await?;
            assert_eq!(answer.status(), 401, "{path} {header:?}");
            assert_eq!(answer.headers()["www-authenticate"], "Bearer realm=\"admin\"");
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
            let problem: Value = answer.json().await?;
            assert_eq!(problem["type"], "urn:shop:problem:unauthorized");
        }
    }
    assert_eq!(door.get("/admin/parked").await?, (200, json!({ "items": [], "next": null })));
    let public = door.orders.client.get(format!("{}/admin/parked", door.orders.url)).bearer_auth(TOKEN);
    assert_eq!(public.send().await?.status(), 404);
    Ok(())
}

#[tokio::test]
async fn what_is_parked_can_be_looked_at_replayed_and_given_up() -> anyhow::Result<()> {
    let door = Door::open().await?;
    let (order, event) = door.parked(0).await?;
    let (_, page) = door.get("/admin/parked?limit=10").await?;
    assert_eq!(page["items"][0]["eventId"], json!(event), "{page}");
    assert_eq!(page["items"][0]["lastError"], "no queue is bound for it");
    let (_, shown) = door.get(&format!("/admin/parked/{event}")).await?;
    assert_eq!(
        (&shown["payload"]["subject"], &shown["waitingBehind"]),
        (&json!(order), &json!(0)),
        "{shown}"
    );

    // Giving up has to be meant, and to be explained.
    let path = format!("/admin/parked/{event}/discard");
    let (status, problem) = door.post(&path, json!({ "note": "why" })).await?;
    assert_eq!((status, problem["type"].as_str()), (422, Some("urn:shop:problem:gap-not-accepted")));
    assert_eq!(door.post(&path, json!({ "note": " ", "acceptGap": true })).await?.0, 400);
    let (status, answer) = door.post(&path, json!({ "note": "why", "acceptGap": true })).await?;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer, json!({ "outcome": "discarded", "aggregateId": order, "gap": 1, "follow": [] }));
    assert_eq!(door.post(&path, json!({ "note": "why", "acceptGap": true })).await?.0, 404);

    let (_, young) = door.parked(0).await?;
    let (_, old) = door.parked(20).await?;
    let (status, page) = door.post("/admin/parked/replay", json!({ "all": true })).await?;
    let outcome = |id: Uuid, outcome: &str| json!({ "eventId": id, "outcome": outcome });
    assert_eq!((status, &page["items"]), (200, &json!([outcome(young, "owed"), outcome(old, "too-old")])));
    let (_, page) = door.post("/admin/parked/replay", json!({ "ids": [old], "force": true })).await?;
    assert_eq!(page["items"], json!([outcome(old, "owed")]));
    assert_eq!(door.get("/admin/parked").await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_with_a_problem() -> anyhow::Result<()> {
    let door = Door::open().await?;
    for (path, body) in [
        ("/admin/parked/replay", json!({})),
        ("/admin/parked/replay", json!({ "ids": [], "all": true })),
        ("/admin/parked/replay", json!({ "ids": ["nonsense"] })),
        ("/admin/parked/replay", json!({ "id": [Uuid::nil()] })),
        ("/admin/published/replay", json!({ "all": true })),
        ("/admin/published/replay", json!({ "from": "yesterday" })),
        ("/admin/published/replay", json!({ "ids": vec![Uuid::nil(); 1_001] })),
    ] {
        let (status, problem) = door.post(path, body.clone()).await?;
        assert_eq!((status, problem["type"].as_str()), (400, Some("urn:shop:problem:bad-request")), "{body}");
    }
    for path in ["/admin/parked?limit=many", "/admin/parked?page=2", "/admin/parked/nonsense"] {
        let (status, problem) = door.get(path).await?;
        assert_eq!((status, problem["status"].as_i64()), (400, Some(400)), "{path} {problem}");
    }
    assert_eq!(door.get(&format!("/admin/parked/{}", Uuid::new_v4())).await?.0, 404);
    let large = door.request(Method::POST, "/admin/parked/replay").bearer_auth(TOKEN);
    let large = large.header("content-type", "application/json").body(" ".repeat(70_000)).send().await?;
    assert_eq!(large.status(), 413);
    Ok(())
}
