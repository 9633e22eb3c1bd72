//! The binary as a process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say so and end")]

use std::{
    net::SocketAddr,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::timeout,
};

const DEADLINE: Duration = Duration::from_secs(30);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fault-proxy"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Starts the binary and reads its first line.
async fn start(arguments: &[&str]) -> (Child, Value) {
    let mut child = command(arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
    (child, serde_json::from_str(&line).unwrap())
}

fn address(value: &Value) -> SocketAddr {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_binary_prints_its_addresses_and_forwards() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let route = format!("first=127.0.0.1:0,{}", upstream.local_addr().unwrap());
    let other = format!("second=0,{}", upstream.local_addr().unwrap());
    let (_child, printed) = start(&["--route", &route, "--route", &other, "--control", "127.0.0.1:0"]).await;
    for name in ["first", "second"] {
        let mut client = TcpStream::connect(address(&printed["routes"][name])).await.unwrap();
        client.write_all(b"question").await.unwrap();
        let (mut server, _) = timeout(DEADLINE, upstream.accept()).await.unwrap().unwrap();
        let mut question = [0; 8];
        timeout(DEADLINE, server.read_exact(&mut question)).await.unwrap().unwrap();
        assert_eq!(&question, b"question");
    }
    let routes = format!("http://{}/routes", address(&printed["control"]));
    let shown: Value = reqwest::get(routes).await.unwrap().json().await.unwrap();
    assert_eq!(shown[1]["name"], "second");
}

#[tokio::test]
async fn a_signal_ends_the_binary_within_a_second() {
    for signal in [Signal::TERM, Signal::INT] {
        // A machine under load may be late. A process that waits for its connections is late every time.
        let mut fastest = Duration::MAX;
        for _ in 0..10 {
            fastest = fastest.min(time_to_end(signal).await);
            if fastest < Duration::from_secs(1) {
                break;
            }
        }
        assert!(fastest < Duration::from_secs(1), "{signal:?}: {fastest:?}");
    }
}

/// How long the binary takes to end with an open connection, a fault and an idle connection to its control API.
async fn time_to_end(signal: Signal) -> Duration {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let route = format!("route=0,{}", upstream.local_addr().unwrap());
    let (mut child, printed) = start(&["--route", &route]).await;
    let _client = TcpStream::connect(address(&printed["routes"]["route"])).await.unwrap();
    let _accepted = timeout(DEADLINE, upstream.accept()).await.unwrap().unwrap();
    let http = reqwest::Client::new();
    let faults = format!("http://{}/routes/route/faults", address(&printed["control"]));
    let body = json!([{ "fault": "black-hole", "lastsMs": 600000 }]);
    assert_eq!(http.put(faults).json(&body).send().await.unwrap().status(), 200);
    let signalled_at = Instant::now();
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
    let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    signalled_at.elapsed()
}

#[tokio::test]
async fn bad_arguments_end_the_start_with_a_message() {
    let cases: [(&[&str], &str); 5] = [
        (&[], "--route"),
        (&["--route", "name"], "expected name=listen,upstream"),
        (&["--route", "name=0,8.8.8.8:53"], "failed to accept upstream 8.8.8.8:53"),
        (&["--route", "name=0.0.0.0:0,127.0.0.1:1"], "failed to accept listen address 0.0.0.0:0"),
        (&["--route", "name=0,127.0.0.1:1", "--control", "0.0.0.0:0"], "listens on loopback only"),
    ];
    for (arguments, expected) in cases {
        let output = timeout(DEADLINE, command(arguments).output()).await.unwrap().unwrap();
        assert!(!output.status.success());
        assert!(output.stdout.is_empty());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(expected), "{message}");
    }
}
