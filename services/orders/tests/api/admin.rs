//! The admin API: it needs its token, is not on the public port, and handles parked events.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::Orders;

const TOKEN: &str = "sixteen-letters-and-more";

struct Admin {
    orders: Orders,
    url: String,
}

impl Admin {
    async fn start() -> anyhow::Result<Self> {
        Self::start_with(("ORDERS_ADMIN_TOKEN", TOKEN)).await
    }

    async fn start_with(token: (&str, &str)) -> anyhow::Result<Self> {
        let address = format!("127.0.0.1:{}", testbed::free_port()?);
        let settings = [("ORDERS_ADMIN_ADDRESS", address.as_str()), token, ("ORDERS_LOG", "info")];
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

    /// Places an order and parks its event, as thirteen refusals of the broker would. Returns the order and the event.
    async fn parked(&self, days_old: i32) -> anyhow::Result<(Uuid, Uuid)> {
        let placed = self.orders.place().await?;
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
async fn admin_api_needs_its_token_and_is_not_on_the_public_port() -> anyhow::Result<()> {
    let admin = Admin::start().await?;
    let invalid = [
        None,
        Some("Bearer "),
        Some("Bearer sixteen-letters-and-mor"),
        Some("Bearer sixteen-letters-and-more-"),
        Some("Basic sixteen-letters-and-more"),
        Some("sixteen-letters-and-more"),
    ];
    for path in ["/admin/parked", "/admin/nothing", "/"] {
        for header in invalid {
            let request = admin.request(Method::GET, path);
            let request = match header {
                Some(header) => request.header("authorization", header),
                None => request,
            };
            let answer = request.send().await?;
            assert_eq!(answer.status(), 401, "{path} {header:?}");
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
            let problem: Value = answer.json().await?;
            assert_eq!(problem["type"], "urn:shop:problem:unauthorized");
        }
    }
    assert_eq!(admin.get("/admin/parked").await?, (200, json!({ "items": [], "next": null })));
    let public = admin.orders.client.get(format!("{}/admin/parked", admin.orders.url)).bearer_auth(TOKEN);
    assert_eq!(public.send().await?.status(), 404);
    Ok(())
}

/// While the token is changed, some operators have the new one and others the old one.
#[tokio::test]
async fn two_tokens_of_a_file_are_accepted_and_the_binary_sends_one() -> anyhow::Result<()> {
    let file = std::env::temp_dir().join(format!("tokens-{}", Uuid::new_v4()));
    std::fs::write(&file, format!("the-next-of-the-tokens,{TOKEN}\n"))?;
    let admin = Admin::start_with(("ORDERS_ADMIN_TOKEN_FILE", file.to_str().unwrap())).await?;
    for (token, status) in [
        (TOKEN, 200),
        ("the-next-of-the-tokens", 200),
        ("the-next-of-the-tokens,sixteen-letters-and-more", 401),
        ("", 401),
    ] {
        let answer = admin.request(Method::GET, "/admin/parked").bearer_auth(token).send().await?;
        assert_eq!(answer.status(), status, "{token}");
    }
    let (_, listed) = admin.orders.run(&["get", "/admin/parked"], "")?;
    std::fs::remove_file(file)?;
    assert!(listed.starts_with("HTTP/1.0 200 "), "{listed}");
    Ok(())
}

/// As in a container without another HTTP client.
#[tokio::test]
async fn binary_of_the_service_asks_the_running_process() -> anyhow::Result<()> {
    let admin = Admin::start().await?;
    let orders = &admin.orders;
    assert!(orders.run(&["healthcheck"], "")?.0);
    let (_, metrics) = orders.run(&["get", "/metrics"], "")?;
    assert!(metrics.contains("\r\n\r\n") && metrics.contains("\nlog_lines_dropped_total 0\n"), "{metrics}");
    let (_, event) = admin.parked(0).await?;
    let (_, listed) = orders.run(&["get", "/admin/parked?limit=10"], "")?;
    assert!(listed.starts_with("HTTP/1.0 200 ") && listed.contains(&event.to_string()), "{listed}");
    let post = |operator: &str, body: &str| {
        orders.run(&["post", "/admin/parked/replay", "--operator", operator], body)
    };
    let (_, refused) = post("kim", "{}")?;
    assert!(refused.starts_with("HTTP/1.0 4"), "{refused}");
    for unnamed in [post("", r#"{"all":true}"#)?, post("kim\r\nX-Other: 1", r#"{"all":true}"#)?] {
        assert!(!unnamed.0 && unnamed.1.starts_with("--operator: "), "{unnamed:?}");
    }
    assert_eq!(orders.run(&["post", "/admin/parked/replay"], r#"{"all":true}"#)?, (false, String::new()));
    let (_, replayed) = post("kim", r#"{"all":true}"#)?;
    assert!(
        replayed.starts_with("HTTP/1.0 200 ") && replayed.contains(r#""outcome":"pending""#),
        "{replayed}"
    );
    let log = orders.service.log()?;
    let line = log.lines().find(|line| line.contains("events replayed"));
    assert!(line.is_some_and(|line| line.contains(r#""who":"kim""#)), "{line:?}");
    Ok(())
}

#[tokio::test]
async fn parked_events_can_be_listed_replayed_and_discarded() -> anyhow::Result<()> {
    let admin = Admin::start().await?;
    let (order, event) = admin.parked(0).await?;
    let (_, page) = admin.get("/admin/parked?limit=10").await?;
    assert_eq!(page["items"][0]["eventId"], json!(event), "{page}");
    assert_eq!(page["items"][0]["lastError"], "no queue is bound for it");
    let (_, shown) = admin.get(&format!("/admin/parked/{event}")).await?;
    assert_eq!(
        (&shown["payload"]["subject"], &shown["waitingBehind"]),
        (&json!(order), &json!(0)),
        "{shown}"
    );

    // A discard needs `acceptGap` and a note.
    let path = format!("/admin/parked/{event}/discard");
    let (status, problem) = admin.post(&path, json!({ "note": "why" })).await?;
    assert_eq!((status, problem["type"].as_str()), (422, Some("urn:shop:problem:gap-not-accepted")));
    assert_eq!(admin.post(&path, json!({ "note": " ", "acceptGap": true })).await?.0, 400);
    let (status, answer) = admin.post(&path, json!({ "note": "why", "acceptGap": true })).await?;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer, json!({ "aggregateId": order, "gap": 1, "follow": [] }));
    assert_eq!(admin.post(&path, json!({ "note": "why", "acceptGap": true })).await?.0, 404);

    let (_, young) = admin.parked(0).await?;
    let (_, old) = admin.parked(20).await?;
    let (status, page) = admin.post("/admin/parked/replay", json!({ "all": true })).await?;
    let outcome = |id: Uuid, outcome: &str| json!({ "eventId": id, "outcome": outcome });
    assert_eq!((status, &page["items"]), (200, &json!([outcome(young, "pending"), outcome(old, "too-old")])));
    let (_, page) = admin.post("/admin/parked/replay", json!({ "ids": [old], "force": true })).await?;
    assert_eq!(page["items"], json!([outcome(old, "pending")]));
    assert_eq!(admin.get("/admin/parked").await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn invalid_admin_requests_get_problems() -> anyhow::Result<()> {
    let admin = Admin::start().await?;
    for (path, body) in [
        ("/admin/parked/replay", json!({})),
        ("/admin/parked/replay", json!({ "ids": [], "all": true })),
        ("/admin/parked/replay", json!({ "ids": ["nonsense"] })),
        ("/admin/parked/replay", json!({ "id": [Uuid::nil()] })),
        ("/admin/published/replay", json!({ "all": true })),
        ("/admin/published/replay", json!({ "from": "yesterday" })),
        ("/admin/published/replay", json!({ "ids": vec![Uuid::nil(); 1_001] })),
    ] {
        let (status, problem) = admin.post(path, body.clone()).await?;
        assert_eq!((status, problem["type"].as_str()), (400, Some("urn:shop:problem:bad-request")), "{body}");
    }
    for path in ["/admin/parked?limit=many", "/admin/parked?page=2", "/admin/parked/nonsense"] {
        let (status, problem) = admin.get(path).await?;
        assert_eq!(
            (status, problem["type"].as_str()),
            (400, Some("urn:shop:problem:bad-request")),
            "{path} {problem}"
        );
    }
    assert_eq!(admin.get(&format!("/admin/parked/{}", Uuid::new_v4())).await?.0, 404);
    let large = admin.request(Method::POST, "/admin/parked/replay").bearer_auth(TOKEN);
    let large = large.header("content-type", "application/json").body(" ".repeat(70_000)).send().await?;
    assert_eq!(large.status(), 413);
    Ok(())
}
