//! A trace store that is not there when the process starts. Spans are dropped until it is, and sent from then on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::time::{Duration, SystemTime};

use events::{
    TraceContext,
    spans::{Kind, Span},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use testbed::eventually;
use tokio_util::sync::CancellationToken;
use trace_store::{TraceStore, hex};

const DEADLINE: Duration = Duration::from_secs(60);

fn record(context: TraceContext) {
    let start = SystemTime::now();
    events::spans::record(|| {
        Span::ended(context, Kind::Consumer, "process", start).with("shop.duplicate", true).failed("why")
    });
}

#[tokio::test]
async fn spans_are_sent_once_the_store_is_there_with_their_ids_and_attributes() {
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let port = testbed::free_port().unwrap();
    let endpoint = format!("http://127.0.0.1:{port}").parse().unwrap();
    let stop = CancellationToken::new();
    let sending = tokio::spawn(service::otlp::start("test", &endpoint, 1.0, stop.clone()).unwrap());
    record(TraceContext::root());
    eventually("the first span to be dropped", DEADLINE, async || {
        Ok(metrics.render().contains("spans_dropped_total{reason=\"not-sent\"} 1").then_some(()))
    })
    .await
    .unwrap();

    let store = TraceStore::start(port).await.unwrap();
    let parent = TraceContext::root();
    let child = parent.child();
    record(child);
    // The last ones before the stop are sent too.
    stop.cancel();
    tokio::time::timeout(DEADLINE, sending).await.unwrap().unwrap();
    let trace = store.trace(&parent.trace_id());
    assert_eq!(trace.len(), 1, "{}", metrics.render());
    let (received, span) = (&trace[0], &trace[0].span);
    let ids = (hex(&span.span_id), hex(&span.parent_span_id));
    let (_, id, _) = child.ids();
    let (_, parent_id, _) = parent.ids();
    assert_eq!(ids, (format!("{id:016x}"), format!("{parent_id:016x}")));
    let kind = span.kind().as_str_name();
    assert_eq!((&*received.service, &*span.name, kind), ("test", "process", "SPAN_KIND_CONSUMER"));
    assert_eq!((&*received.attribute("shop.duplicate"), received.error()), ("true", Some("why")));
    assert!(metrics.render().contains("spans_sent_total 1"), "{}", metrics.render());
}
