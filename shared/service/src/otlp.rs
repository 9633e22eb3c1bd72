//! Optional. Without it: there are logs and metrics, and no traces.
//!
//! Sends a process's spans to a trace store over OTLP (HTTP with protocol buffers).
//!
//! Tracing must never cost an order. So nothing waits for the trace store: spans go into a queue of bounded length, one
//! task sends what is in it, and a span that finds the queue full, or that could not be sent in time, is dropped and
//! counted in `spans_dropped_total`. What is in the queue when the process is killed is lost.

use std::time::Duration;

use anyhow::Context as _;
use events::spans::{Kind, Span};
use opentelemetry::{
    InstrumentationScope,
    trace::{SpanContext, SpanId, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks},
};
use reqwest::Url;
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Spans that wait to be sent: some seconds of them at a thousand orders a second, and at most about ten megabytes.
const QUEUE: usize = 16_384;

/// The most spans in one request.
const BATCH: usize = 512;

/// How long a span may wait for others.
const LINGER: Duration = Duration::from_millis(500);

/// How long the trace store may take to answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long after the stop the spans of requests and groups in progress are still collected and sent.
const AFTER_STOP: Duration = Duration::from_secs(2);

/// Exports this process's spans from now on, to `/v1/traces` below a trace store's base address, for example
/// `http://127.0.0.1:4318`. The returned task sends them, until a while after `stop`.
///
/// `ratio` is the part of all traces that is recorded, 0 to 1. The trace's id decides, so every service decides alike.
pub fn start(
    service: &'static str,
    endpoint: &Url,
    ratio: f64,
    stop: CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static + use<>> {
    let url = traces_url(endpoint).context("failed to make the address of the traces")?;
    let client = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build()?;
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(url.as_str())
        .with_timeout(DEADLINE)
        .build()?;
    exporter.set_resource(&Resource::builder().with_service_name(service).build());
    // From the start: an alert reads their increase, and would not see the first value of a series.
    for reason in ["queue-full", "not-sent", "stopped"] {
        count_dropped(reason, 0);
    }
    let (queue, waiting) = mpsc::channel(QUEUE);
    events::spans::export_to(move |span| enqueue(span, &queue, ratio));
    Ok(send_all(exporter, waiting, stop))
}

fn enqueue(span: Span, queue: &mpsc::Sender<Span>, ratio: f64) {
    if !is_sampled(&span, ratio) {
        return;
    }
    match queue.try_send(span) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => count_dropped("queue-full", 1),
        Err(TrySendError::Closed(_)) => count_dropped("stopped", 1),
    }
}

fn count_dropped(reason: &'static str, spans: u64) {
    metrics::counter!("spans_dropped_total", "reason" => reason).increment(spans);
}

/// The base address may have its own path. `None`: it can have none at all.
fn traces_url(base: &Url) -> Option<Url> {
    let mut url = base.clone();
    url.path_segments_mut().ok()?.pop_if_empty().extend(["v1", "traces"]);
    Some(url)
}

/// The lower half of a trace's id is random, and the same in every service.
fn is_sampled(span: &Span, ratio: f64) -> bool {
    let (trace_id, ..) = span.context.ids();
    #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    let random = trace_id as u64 as f64 / u64::MAX as f64;
    span.context.is_sampled() && random <= ratio
}

/// Sends what is in the queue. One request at a time: while the trace store is slow, the queue fills up.
async fn send_all(exporter: SpanExporter, mut waiting: mpsc::Receiver<Span>, stop: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut answers = true;
    while stop.run_until_cancelled(waiting.recv_many(&mut batch, BATCH)).await.is_some() {
        // A full batch means that more may be waiting.
        if batch.len() < BATCH {
            stop.run_until_cancelled(sleep(LINGER)).await;
            fill(&mut batch, &mut waiting);
        }
        send(&exporter, std::mem::take(&mut batch), &mut answers).await;
    }
    sleep(AFTER_STOP / 2).await;
    let end = Instant::now() + AFTER_STOP / 2;
    waiting.close();
    loop {
        fill(&mut batch, &mut waiting);
        if batch.is_empty() {
            break;
        }
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        if timeout_at(end, send(&exporter, std::mem::take(&mut batch), &mut answers)).await.is_err() {
            count_dropped("stopped", count);
        }
    }
}

fn fill(batch: &mut Vec<Span>, waiting: &mut mpsc::Receiver<Span>) {
    while batch.len() < BATCH
        && let Ok(span) = waiting.try_recv()
    {
        batch.push(span);
    }
}

/// Sends a batch once. `answers` is whether the last one was accepted: a change is logged, and not each failure.
async fn send(exporter: &SpanExporter, batch: Vec<Span>, answers: &mut bool) {
    let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
    let spans: Vec<SpanData> = batch.into_iter().map(exported).collect();
    let sent = timeout(DEADLINE, exporter.export(spans)).await;
    let failure = match sent {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {DEADLINE:?}")),
    };
    match failure {
        None => {
            metrics::counter!("spans_sent_total").increment(count);
            if !*answers {
                tracing::info!("the trace store accepts spans again");
            }
            *answers = true;
        }
        Some(error) => {
            count_dropped("not-sent", count);
            if *answers {
                tracing::warn!(error, "failed to send spans; they are dropped");
            }
            *answers = false;
        }
    }
}

/// Turns a span into what the exporter takes.
fn exported(span: Span) -> SpanData {
    let Span { context, kind, name, start, end, attributes, error } = span;
    let (trace_id, span_id, parent) = context.ids();
    SpanData {
        span_context: SpanContext::new(
            TraceId::from(trace_id),
            SpanId::from(span_id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: matches!(kind, Kind::Server | Kind::Consumer),
        span_kind: kind,
        name: name.into(),
        start_time: start,
        // Two machines' clocks differ, and a database's from both: a span may not end before it begins.
        end_time: end.max(start),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: error.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("shop").build(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn span(context: &str) -> Span {
        let context = events::TraceContext::child_of(Some(context));
        Span::ended(context, Kind::Internal, "test", SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn a_trace_is_sampled_by_its_id_and_only_if_its_origin_wants_it() {
        let low = "00-ffffffffffffffff0000000000000001-b7ad6b7169203331-01";
        let high = "00-0000000000000001f000000000000000-b7ad6b7169203331-01";
        let unwanted = "00-ffffffffffffffff0000000000000001-b7ad6b7169203331-00";
        for (header, ratio, expected) in [
            (low, 0.1, true),
            (high, 0.1, false),
            (high, 1.0, true),
            (low, 0.0, false),
            (unwanted, 1.0, false),
        ] {
            assert_eq!(is_sampled(&span(header), ratio), expected, "{header} at {ratio}");
        }
    }

    #[test]
    fn a_base_address_keeps_its_path() -> anyhow::Result<()> {
        for (base, expected) in [
            ("http://store:4318", "http://store:4318/v1/traces"),
            ("http://store:4318/", "http://store:4318/v1/traces"),
            ("http://store:4318/tenant", "http://store:4318/tenant/v1/traces"),
            ("http://store:4318/tenant/", "http://store:4318/tenant/v1/traces"),
        ] {
            assert_eq!(traces_url(&base.parse()?).map(String::from).as_deref(), Some(expected));
        }
        Ok(())
    }
}
