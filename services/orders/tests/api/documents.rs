//! The documents and the page over them, as the service gives them away.

use std::{fs, path::Path};

use reqwest::Url;
use serde_json::Value;

use crate::support::Orders;

#[tokio::test]
async fn the_documents_that_are_served_are_those_that_are_committed() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for name in ["openapi.json", "asyncapi.json"] {
        let response = orders.client.get(format!("{}/{name}", orders.url)).send().await?;
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(response.headers().contains_key("x-request-id"));
        let committed =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name))?;
        assert!(response.text().await? == committed, "docs/{name} is not what the service says");
    }
    Ok(())
}

/// Everything between quotes behind `src=` and `href=`.
fn assets(page: &str) -> Vec<&str> {
    let behind = |attribute| page.split(attribute).skip(1).filter_map(|rest: &str| rest.split('"').next());
    behind("src=\"").chain(behind("href=\"")).collect()
}

#[tokio::test]
async fn the_page_and_all_that_it_loads_come_from_the_service_and_name_no_other_host() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let page = orders.client.get(format!("{}/docs", orders.url)).send().await?;
    assert_eq!((page.status().as_u16(), page.url().path()), (200, "/docs/"));
    // A browser would refuse anything else, whatever the scripts want.
    let policy = page.headers()["content-security-policy"].to_str()?.to_owned();
    assert!(policy.starts_with("default-src 'self';") && !policy.contains("http"), "{policy}");
    let address = page.url().clone();
    let html = page.text().await?;
    assert!(!html.contains("//"), "{html}");

    let assets = assets(&html);
    assert!(assets.len() >= 5, "{assets:?}");
    for asset in assets {
        let url = address.join(asset)?;
        assert_eq!(url.origin(), address.origin(), "{asset}");
        let response = orders.client.get(url).send().await?;
        assert_eq!(response.status(), 200, "{asset}");
        let kind = response.headers()["content-type"].to_str()?.to_owned();
        let body = response.bytes().await?;
        let text = String::from_utf8_lossy(&body);
        match Path::new(asset).extension().and_then(|extension| extension.to_str()) {
            Some("css") => assert!(!text.contains("url(http") && !text.contains("@import"), "{asset}"),
            Some("js") => assert!(kind.contains("javascript"), "{asset}: {kind}"),
            _ => {}
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_page_shows_our_document_and_asks_nobody_about_it() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let address = Url::parse(&orders.url)?.join("/docs/swagger-initializer.js")?;
    let script = orders.client.get(address).send().await?.text().await?;
    assert!(script.contains(r#""url": "/openapi.json""#), "{script}");
    assert!(script.contains(r#""validatorUrl": "none""#), "{script}");
    assert!(!script.contains("petstore") && !script.contains("http"), "{script}");
    Ok(())
}

#[tokio::test]
async fn what_the_page_does_not_have_is_a_problem_like_any_other() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for path in ["/docs/nothing.js", "/docs/../openapi", "/docs/%ff", "/openapi.json/"] {
        let response = orders.client.get(format!("{}{path}", orders.url)).send().await?;
        assert!(response.status().is_client_error(), "{path}: {}", response.status());
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{path}");
    }
    let response = orders.client.post(format!("{}/openapi.json", orders.url)).send().await?;
    assert_eq!((response.status().as_u16(), response.headers()["allow"].to_str()?), (405, "GET,HEAD"));
    assert_eq!(response.json::<Value>().await?["type"], "urn:shop:problem:method-not-allowed");
    Ok(())
}
