//! The load generator against servers of known behaviour: its counts and latencies must be right.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    http::StatusCode,
    routing::{MethodRouter, post},
};
use load_tests::{Answer, Load, Outcome, Saturation, run, saturate};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use uuid::Uuid;

async fn serve(orders: MethodRouter) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/orders", orders)).await });
    Ok(url)
}

fn accepted() -> (StatusCode, Json<Value>) {
    (StatusCode::CREATED, Json(json!({ "id": Uuid::new_v4(), "status": "pending" })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_is_held_and_every_acknowledged_order_is_reported_with_its_id() {
    let url = serve(post(|_: Json<Value>| async { accepted() })).await.unwrap();
    let (sender, outcomes) = mpsc::channel();
    let load = Load { seed: 1, ..Load::new(url, 200, Duration::from_secs(2)) };
    let summary = run(load, move |outcome| sender.send(outcome).unwrap()).await.unwrap();
    assert_eq!((summary.sent, summary.accepted, summary.failed, summary.shed), (400, 400, 0, 0));
    assert!(summary.took >= Duration::from_millis(1990), "it was sent faster than asked: {:?}", summary.took);

    let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect();
    outcomes.sort_by_key(|outcome| outcome.number);
    let id = |outcome: &Outcome| if let Answer::Accepted(id) = outcome.answer { Some(id) } else { None };
    let ids: HashSet<Uuid> = outcomes.iter().filter_map(id).collect();
    assert_eq!(ids.len(), 400);
    let spacing = outcomes[399].due.duration_since(outcomes[0].due).unwrap();
    assert_eq!(spacing.as_micros(), 399 * 5_000, "due times are a constant distance apart");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_in_which_the_service_stalls_counts_for_every_request_that_was_due_in_it() {
    // At its 100th request the server stops answering for a second.
    let (asked, stall) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None::<Instant>)));
    let stalls = post(move |_: Json<Value>| async move {
        if asked.fetch_add(1, Ordering::SeqCst) == 100 {
            *stall.lock().unwrap() = Some(Instant::now() + Duration::from_secs(1));
        }
        let end = *stall.lock().unwrap();
        if let Some(end) = end {
            tokio::time::sleep_until(end.into()).await;
        }
        accepted()
    });
    let load = Load::new(serve(stalls).await.unwrap(), 100, Duration::from_secs(4));
    let (sender, outcomes) = mpsc::channel();
    let summary = run(load, move |outcome| sender.send(outcome).unwrap()).await.unwrap();
    assert_eq!((summary.accepted, summary.shed), (400, 0));
    let latency = summary.latency.unwrap();
    assert!(latency.p99 > Duration::from_millis(850), "the stall does not show: {latency}");
    // A closed loop would have one slow request per connection. Here every request that was due is slow.
    let waited = |outcome: &Outcome| {
        outcome.finished.duration_since(outcome.due).unwrap() > Duration::from_millis(500)
    };
    let slow = outcomes.iter().filter(waited).count();
    assert!(slow >= 40, "{slow} requests were slow, about 50 were due in the first half of the stall");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_the_limit_in_flight_is_counted_as_shed() {
    // The server answers nothing until a request was shed. The deadline of each request bounds that.
    let (gate, opened) = watch::channel(false);
    let waits = post(move |_: Json<Value>| {
        let mut opened = opened.clone();
        async move {
            let _ = opened.wait_for(|open| *open).await;
            accepted()
        }
    });
    let url = serve(waits).await.unwrap();
    let load = Load { max_in_flight: 10, ..Load::new(url, 100, Duration::from_secs(1)) };
    let (sender, outcomes) = mpsc::channel();
    let summary = run(load, move |outcome| {
        if outcome.answer == Answer::Shed {
            gate.send_replace(true);
        }
        sender.send(outcome).unwrap();
    })
    .await
    .unwrap();
    assert_eq!(summary.sent + summary.shed, 100, "every request that was due is accounted for");
    assert_eq!(summary.sent, summary.accepted);
    assert!(summary.accepted >= 10 && summary.shed > 0, "ten at a time, and no answer to them: {summary}");
    let reported = outcomes.iter().filter(|outcome| outcome.answer == Answer::Shed).count();
    assert_eq!(reported as u64, summary.shed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_counted_by_status_and_failures_by_their_reason() {
    let refuses = post(|_: Json<Value>| async { StatusCode::SERVICE_UNAVAILABLE });
    let url = serve(refuses).await.unwrap();
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
    // The server answers nothing until eight requests were there at once. The deadline of each request bounds that.
    let (now, gate) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(0));
    let most = gate.subscribe();
    let waits = post(move |_: Json<Value>| async move {
        let there = now.fetch_add(1, Ordering::SeqCst) + 1;
        gate.send_modify(|most| *most = there.max(*most));
        let _ = gate.subscribe().wait_for(|most| *most >= 8).await;
        now.fetch_sub(1, Ordering::SeqCst);
        accepted()
    });
    let url = serve(waits).await.unwrap();
    let load = Saturation { url, connections: 8, for_: Duration::from_secs(1), seed: 1 };
    let summary = saturate(load, |_| ()).await.unwrap();
    assert_eq!(*most.borrow(), 8);
    assert_eq!((summary.sent, summary.failed), (summary.accepted, 0));
    assert!(summary.accepted > 8, "a connection that is answered goes on: {summary}");
}

#[tokio::test]
async fn a_load_without_a_rate_or_a_valid_url_is_an_error() {
    assert!(run(Load::new("http://127.0.0.1:1", 0, Duration::from_secs(1)), |_| ()).await.is_err());
    assert!(run(Load::new("not a url", 1, Duration::from_secs(1)), |_| ()).await.is_err());
}
