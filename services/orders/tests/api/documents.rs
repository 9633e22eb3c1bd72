//! The API documents and the page that shows them, as the service serves them. `docs/openapi.json` is generated from the
//! code. After a change, `UPDATE_CONTRACTS=1 cargo test -p orders --test api openapi_document` writes it again.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::Orders;

#[test]
fn committed_openapi_document_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = orders::pretty(&orders::api::openapi()).unwrap();
    if std::env::var_os("UPDATE_CONTRACTS").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let is_equal = fs::read_to_string(&path).is_ok_and(|committed| committed == generated);
    assert!(
        is_equal,
        "docs/openapi.json does not match the code: the head of this file says how to write it"
    );
}

#[tokio::test]
async fn served_documents_are_the_committed_ones() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    for name in ["openapi.json", "asyncapi.json"] {
        let response = orders.client.get(format!("{}/{name}", orders.url)).send().await?;
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(response.headers().contains_key("x-request-id"));
        let committed =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name))?;
        assert!(response.text().await? == committed, "docs/{name} is not what the service serves");
    }
    Ok(())
}

/// The values of all `src` and `href` attributes.
fn assets(page: &str) -> Vec<&str> {
    let values = |attribute| page.split(attribute).skip(1).filter_map(|rest: &str| rest.split('"').next());
    values("src=\"").chain(values("href=\"")).collect()
}

#[tokio::test]
async fn page_shows_our_document_and_names_no_other_host() -> anyhow::Result<()> {
    let orders = Orders::start().await?;
    let root = orders.client.get(&orders.url).send().await?;
    assert_eq!((root.status().as_u16(), root.url().path()), (200, "/docs/"));
    let page = orders.client.get(format!("{}/docs", orders.url)).send().await?;
    assert_eq!((page.status().as_u16(), page.url().path()), (200, "/docs/"));
    // With this policy a browser refuses to load anything from another host.
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
    let script =
        orders.client.get(address.join("/docs/swagger-initializer.js")?).send().await?.text().await?;
    assert!(script.contains(r#""url": "/openapi.json""#), "{script}");
    assert!(script.contains(r#""validatorUrl": "none""#), "{script}");
    assert!(!script.contains("petstore") && !script.contains("http"), "{script}");
    Ok(())
}

#[tokio::test]
async fn unknown_asset_paths_get_problems() -> anyhow::Result<()> {
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
