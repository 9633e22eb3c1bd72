//! Start, health and stop of the process.

use std::{net::TcpListener, process::Stdio, time::Duration};

use serde_json::json;

use crate::support::{DEADLINE, Provider, charge, command};

/// Runs the provider with these settings until it ends, and returns its exit code and its standard error.
fn run(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = command().envs(settings.iter().copied()).stderr(Stdio::piped()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn invalid_settings_end_the_start_with_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let database = ("PROVIDER_DATABASE_URL", "postgres://provider:s3cret@127.0.0.1:1/shop");
    let cases: Vec<(&str, Vec<(&str, &str)>)> = vec![
        ("PROVIDER_DATABASE_URL", vec![]),
        ("PROVIDER_DATABASE_URL", vec![("PROVIDER_DATABASE_URL", "mysql://root:s3cret@db/shop")]),
        ("PROVIDER_HTTP_ADDRESS", vec![database, ("PROVIDER_HTTP_ADDRESS", "localhost")]),
        ("PROVIDER_HTTP_ADDRESS", vec![database, ("PROVIDER_HTTP_ADDRESS", &taken)]),
        ("PROVIDER_DATABASE_CONNECTIONS", vec![database, ("PROVIDER_DATABASE_CONNECTIONS", "1")]),
        ("PROVIDER_LOG", vec![database, ("PROVIDER_LOG", "loud=very")]),
        ("PROVIDER_LOG_FORMAT", vec![database, ("PROVIDER_LOG_FORMAT", "xml")]),
        ("PROVIDER_HTTP_ADRESS", vec![database, ("PROVIDER_HTTP_ADRESS", "127.0.0.1:0")]),
    ];
    for (variable, settings) in cases {
        let (code, stderr) = run(&settings);
        assert_eq!(code, Some(78), "{settings:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{settings:?}: {stderr}");
        assert!(stderr.contains(variable), "{settings:?}: {stderr}");
        assert!(!stderr.contains("s3cret"), "{settings:?}: {stderr}");
    }
}

#[tokio::test]
async fn provider_is_not_ready_and_answers_503_without_a_database() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", testbed::free_port()?);
    let database = ("PROVIDER_DATABASE_URL", "postgres://provider:provider@127.0.0.1:1/shop");
    let settings = [database, ("PROVIDER_HTTP_ADDRESS", address.as_str())];
    let mut process = command().envs(settings).spawn()?;
    let client = reqwest::Client::new();
    let ready = testbed::eventually("an answer", DEADLINE, async || {
        Ok(Some(client.get(format!("http://{address}/readyz")).send().await?.status().as_u16()))
    })
    .await;
    let charged = client.post(format!("http://{address}/charges")).json(&charge()).send().await;
    process.kill()?;
    process.wait()?;
    assert_eq!((ready?, charged?.status().as_u16()), (503, 503));
    Ok(())
}

#[tokio::test]
async fn provider_stops_in_order_while_a_request_hangs() -> anyhow::Result<()> {
    let mut provider = Provider::start().await?;
    let address = provider.url.trim_start_matches("http://").to_owned();
    let healthy = || command().arg("healthcheck").env("PROVIDER_HTTP_ADDRESS", &address).status();
    assert!(healthy()?.success());
    provider.put_faults(&json!([{ "fault": "hang-after" }])).await?;
    let hanging = tokio::spawn(provider.request("/charges", None, &charge()).send());
    testbed::eventually("the charge to hang", DEADLINE, async || {
        Ok((provider.rows().await? == (1, 0, 0)).then_some(()))
    })
    .await?;
    let stopped =
        std::process::Command::new("kill").args(["-TERM", &provider.process.id().to_string()]).status()?;
    assert!(stopped.success());
    let ended = testbed::eventually("the process to end", Duration::from_secs(10), async || {
        Ok(provider.process.try_wait()?)
    })
    .await?;
    assert_eq!(ended.code(), Some(0));
    assert!(hanging.await?.is_err(), "the hanging request must get no answer");
    assert!(!healthy()?.success());
    Ok(())
}
