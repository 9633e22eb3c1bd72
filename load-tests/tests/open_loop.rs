//! The load generator against servers of known behaviour: its counts and latencies must be right.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Json, Router, http::StatusCode, routing::post};
use load_tests::{Answer, Load, Outcome, Saturation, run, saturate};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use uuid::Uuid;

async fn serve<F, Fut>(answer: F) -> std::io::Result<String>
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = (StatusCode, Json<Value>)> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let routes =
        Router::new().route("/orders", post(move |Json(_): Json<Value>| async move { answer().await }));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(url)
}

fn accepted() -> (StatusCode, Json<Value>) {
    (StatusCode::CREATED, Json(json!({ "id": Uuid::new_v4(), "status": "pending" })))
}

fn collect() -> (Arc<Mutex<Vec<Outcome>>>, impl Fn(Outcome) + Send + Sync + 'static) {
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let into = outcomes.clone();
    (outcomes, move |outcome| {
        into.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_is_held_and_every_acknowledged_order_is_reported_with_its_id() {
    let url = serve(|| async { accepted() }).await.unwrap();
    let (outcomes, on_outcome) = collect();
    let load = Load { seed: 1, ..Load::new(url, 200, Duration::from_secs(2)) };
    let summary = run(load, on_outcome).await.unwrap();
    assert_eq!((summary.sent, summary.accepted, summary.failed, summary.shed), (400, 400, 0, 0));
    assert!(summary.took >= Duration::from_millis(1990), "it was sent faster than asked: {:?}", summary.took);

    let mut outcomes = outcomes.lock().unwrap().clone();
    outcomes.sort_by_key(|outcome| outcome.number);
    let ids: std::collections::HashSet<Uuid> = outcomes
        .iter()
        .filter_map(|outcome| if let Answer::Accepted(id) = outcome.answer { Some(id) } else { None })
        .collect();
    assert_eq!(ids.len(), 400);
    let spacing = outcomes[399].due.duration_since(outcomes[0].due).unwrap();
    assert_eq!(spacing.as_micros(), 399 * 5_000, "due times are a constant distance apart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_in_which_the_service_stalls_counts_for_every_request_that_was_due_in_it() {
    // At its 100th request the server stops answering for a second.
    let (asked, stall) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None::<Instant>)));
    let url = serve(move || {
        let (asked, stall) = (asked.clone(), stall.clone());
        async move {
            if asked.fetch_add(1, Ordering::SeqCst) == 100 {
                *stall.lock().unwrap() = Some(Instant::now() + Duration::from_secs(1));
            }
            let end = *stall.lock().unwrap();
            if let Some(end) = end {
                tokio::time::sleep_until(end.into()).await;
            }
            accepted()
        }
    })
    .await
    .unwrap();
    let (outcomes, on_outcome) = collect();
    let summary = run(Load::new(url, 100, Duration::from_secs(4)), on_outcome).await.unwrap();
    assert_eq!((summary.accepted, summary.shed), (400, 0));
    let latency = summary.latency.unwrap();
    assert!(latency.p99 > Duration::from_millis(850), "the stall does not show: {latency}");
    // A closed loop would have one slow request per connection. Here every request that was due is slow.
    let waited = |outcome: &&Outcome| {
        outcome.finished.duration_since(outcome.due).unwrap() > Duration::from_millis(500)
    };
    let slow = outcomes.lock().unwrap().iter().filter(waited).count();
    assert!(slow >= 40, "{slow} requests were slow, about 50 were due in the first half of the stall");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_the_limit_in_flight_is_counted_as_shed() {
    // The server answers nothing until a request was shed. The deadline of each request bounds that.
    let gate = Arc::new(watch::Sender::new(false));
    let of_server = gate.clone();
    let url = serve(move || {
        let mut gate = of_server.subscribe();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            accepted()
        }
    })
    .await
    .unwrap();
    let (outcomes, on_outcome) = collect();
    let load = Load { max_in_flight: 10, ..Load::new(url, 100, Duration::from_secs(1)) };
    let summary = run(load, move |outcome| {
        if outcome.answer == Answer::Shed {
            gate.send_replace(true);
        }
        on_outcome(outcome);
    })
    .await
    .unwrap();
    assert_eq!(summary.sent + summary.shed, 100, "every request that was due is accounted for");
    assert_eq!(summary.sent, summary.accepted);
    assert!(summary.accepted >= 10 && summary.shed > 0, "ten at a time, and no answer to them: {summary}");
    let reported = outcomes.lock().unwrap().iter().filter(|outcome| outcome.answer == Answer::Shed).count();
    assert_eq!(reported as u64, summary.shed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_counted_by_status_and_failures_by_their_reason() {
    let url =
        serve(|| async { (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"title": "full"}))) }).await.unwrap();
    let summary = run(Load::new(url, 50, Duration::from_secs(1)), |_| ()).await.unwrap();
    assert_eq!(summary.refused.get(&503), Some(&50));
    assert_eq!((summary.sent, summary.accepted, summary.failed), (50, 0, 0));

    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let summary = run(Load::new(url, 50, Duration::from_secs(1)), |_| ()).await.unwrap();
    assert_eq!((summary.sent, summary.accepted, summary.failed), (50, 0, 50));
    assert!(summary.failures.keys().next().unwrap().contains("failed to connect"), "{:?}", summary.failures);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saturation_keeps_every_connection_busy_and_no_busier() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    // The server answers nothing until eight requests were there at once. The deadline of each request bounds that.
    let gate = Arc::new(watch::Sender::new(false));
    let url = serve(move || {
        let (now, most, gate) = (now.clone(), most.clone(), gate.clone());
        async move {
            let there = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(there, Ordering::SeqCst);
            if there == 8 {
                gate.send_replace(true);
            }
            let _ = gate.subscribe().wait_for(|open| *open).await;
            now.fetch_sub(1, Ordering::SeqCst);
            accepted()
        }
    })
    .await
    .unwrap();
    let load = Saturation { url, connections: 8, for_: Duration::from_secs(1), seed: 1 };
    let summary = saturate(load, |_| ()).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 8);
    assert_eq!((summary.sent, summary.failed), (summary.accepted, 0));
    assert!(summary.accepted > 8, "a connection that is answered goes on: {summary}");
}

#[tokio::test]
async fn a_load_without_a_rate_or_a_valid_url_is_an_error() {
    assert!(run(Load::new("http://127.0.0.1:1", 0, Duration::from_secs(1)), |_| ()).await.is_err());
    assert!(run(Load::new("not a url", 1, Duration::from_secs(1)), |_| ()).await.is_err());
}
