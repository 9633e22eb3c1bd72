//! A trace store that accepts connections and never answers. The process that records spans must not notice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{
    net::TcpListener,
    time::{Duration, SystemTime},
};

use events::{
    TraceContext,
    spans::{Kind, Span},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use testbed::eventually;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);

/// More than the queue holds.
const SPANS: u32 = 20_000;

#[tokio::test]
async fn spans_for_a_store_that_never_answers_are_dropped_and_counted_and_the_process_can_stop() {
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
    let stop = CancellationToken::new();
    let sending = service::otlp::start("test", &endpoint, 1.0, stop.clone()).unwrap();
    let sending = tokio::spawn(sending);
    // Not one of these waits: this task does not yield, so none of them could be sent in the meantime.
    for _ in 0..SPANS {
        events::spans::record(|| {
            Span::ended(TraceContext::root(), Kind::Internal, "test", SystemTime::now())
        });
    }
    eventually("spans to be dropped while the process runs", DEADLINE, async || {
        let page = metrics.render();
        let is_counted = |reason| page.contains(&format!("spans_dropped_total{{reason=\"{reason}\"}}"));
        Ok((is_counted("queue-full") && is_counted("not-sent")).then_some(()))
    })
    .await
    .unwrap();
    assert!(!metrics.render().contains("spans_sent_total"), "{}", metrics.render());
    stop.cancel();
    tokio::time::timeout(DEADLINE, sending).await.unwrap().unwrap();
    // Every one of them is counted somewhere, also those that waited when the process stopped.
    events::spans::record(|| Span::ended(TraceContext::root(), Kind::Internal, "test", SystemTime::now()));
    let page = metrics.render();
    let dropped = page.lines().filter_map(|line| line.strip_prefix("spans_dropped_total{"));
    let dropped: u32 = dropped.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum();
    assert_eq!(dropped, SPANS + 1, "{page}");
}
