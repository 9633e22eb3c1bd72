//! Each fault, seen from both ends of a connection: a client, the proxy, and a server that records what it receives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{
    io::{BufRead as _, BufReader as Lines, ErrorKind},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fault_proxy::{Direction, Effect, Error, Fault, Proxy, Route, Stats};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

const DEADLINE: Duration = Duration::from_secs(60);
/// Long enough to see that something does not arrive.
const SILENCE: Duration = Duration::from_millis(200);
const LASTS: Duration = Duration::from_secs(300);

/// A server that answers each read with the same bytes, and a proxy before it.
struct Rig {
    proxy: Proxy,
    /// What the server has received, by connection.
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Rig {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(vec![Route::new("echo", listener.local_addr().unwrap().to_string())]);
        let proxy = proxy.await.unwrap();
        let received = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let connections = received.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let connections = connections.clone();
                tokio::spawn(async move {
                    let number = {
                        let mut connections = connections.lock().unwrap();
                        connections.push(vec![]);
                        connections.len() - 1
                    };
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        connections.lock().unwrap()[number].extend_from_slice(&buffer[..count]);
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { proxy, received }
    }

    fn set(&self, effect: Effect, direction: Direction) {
        self.proxy.set("echo", Fault::new(effect, direction, LASTS)).unwrap();
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy.address("echo").unwrap()).await.unwrap()
    }

    /// A connection that has carried bytes both ways.
    async fn used(&self) -> TcpStream {
        let mut client = self.connect().await;
        exchange(&mut client, b"hello").await;
        client
    }

    /// Waits until the last connection's server has received these bytes and no others.
    async fn until_received(&self, expected: &[u8]) {
        let arrived = async {
            while self.received.lock().unwrap().last().is_none_or(|bytes| bytes != expected) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        let late = timeout(DEADLINE, arrived).await;
        assert!(late.is_ok(), "{:?} and not {expected:?}", self.received.lock().unwrap().last());
    }

    async fn resets(&self, resets: u64) {
        self.until(|stats| stats.resets == resets).await;
    }

    async fn until(&self, condition: impl Fn(&Stats) -> bool) {
        let met = async {
            while !condition(&self.proxy.stats()["echo"]) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(DEADLINE, met).await.unwrap();
    }
}

async fn exchange(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
    assert_eq!(read(client, bytes.len()).await, bytes);
}

async fn read(client: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut buffer = vec![0; count];
    timeout(DEADLINE, client.read_exact(&mut buffer)).await.unwrap().unwrap();
    buffer
}

/// Reads until the connection ends, and says whether it was reset.
async fn is_reset(client: &mut TcpStream) -> bool {
    let mut rest = vec![];
    match timeout(DEADLINE, client.read_to_end(&mut rest)).await.unwrap() {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[tokio::test]
async fn bytes_and_the_ends_of_streams_go_through() {
    let rig = Rig::start().await;
    let mut client = rig.connect().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    let (mut from, mut to) = client.split();
    let (written, answered) = tokio::join!(
        async {
            to.write_all(&bytes).await.unwrap();
            to.shutdown().await
        },
        async {
            let mut answer = vec![];
            timeout(DEADLINE, from.read_to_end(&mut answer)).await.unwrap().unwrap();
            answer
        }
    );
    written.unwrap();
    assert!(answered == bytes);
}

#[tokio::test]
async fn a_reset_of_the_server_reaches_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy =
        Proxy::start(vec![Route::new("reset", listener.local_addr().unwrap().to_string())]).await.unwrap();
    let mut client = TcpStream::connect(proxy.address("reset").unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    server.set_zero_linger().unwrap();
    drop(server);
    assert!(is_reset(&mut client).await);
    assert_eq!(proxy.stats()["reset"].resets, 0);
}

#[tokio::test]
async fn a_cut_resets_open_connections_and_refuses_new_ones_until_it_ends() {
    let rig = Rig::start().await;
    let mut client = rig.used().await;
    rig.set(Effect::Cut, Direction::Both);
    assert!(is_reset(&mut client).await);
    let mut refused = rig.connect().await;
    assert!(is_reset(&mut refused).await);
    rig.until(|stats| stats.refused == 1 && stats.resets == 1).await;
    // Another one, which ends by itself.
    rig.proxy.set("echo", Fault::new(Effect::Cut, Direction::Both, Duration::from_millis(50))).unwrap();
    let carried = async {
        loop {
            let (mut client, mut answer) = (rig.connect().await, [0; 5]);
            if client.write_all(b"hello").await.is_ok() && client.read_exact(&mut answer).await.is_ok() {
                return answer;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(timeout(DEADLINE, carried).await.expect("the cut to end"), *b"hello");
}

#[tokio::test]
async fn exactly_so_many_bytes_arrive_before_a_reset_and_each_connection_counts_by_itself() {
    let rig = Rig::start().await;
    let mut client = rig.used().await;
    let fault = Fault::new(Effect::ResetAfter { bytes: 7 }, Direction::TowardUpstream, LASTS);
    rig.proxy.set("echo", fault.times(2)).unwrap();
    exchange(&mut client, b"12345").await;
    client.write_all(b"67890").await.unwrap();
    assert!(is_reset(&mut client).await);
    rig.until_received(b"hello1234567").await;
    let mut second = rig.connect().await;
    second.write_all(b"abcdefghij").await.unwrap();
    assert!(is_reset(&mut second).await);
    rig.until_received(b"abcdefg").await;
    rig.resets(2).await;
    // Its resets are used up.
    exchange(&mut rig.connect().await, b"abcdefghij").await;
}

#[tokio::test]
async fn a_pattern_is_found_across_reads_and_arrives_only_if_it_is_forwarded() {
    let rig = Rig::start().await;
    for forward in [true, false] {
        let mut client = rig.used().await;
        let effect = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward };
        rig.set(effect, Direction::TowardUpstream);
        exchange(&mut client, b"begin; COM").await;
        client.write_all(b"MIT;rest").await.unwrap();
        assert!(is_reset(&mut client).await);
        let arrived: &[u8] = if forward { b"hellobegin; COMMIT;rest" } else { b"hellobegin; COM" };
        rig.until_received(arrived).await;
        rig.proxy.clear("echo").unwrap();
    }
    rig.resets(2).await;
}

/// The server has committed, and its client never hears of it.
#[tokio::test]
async fn no_answer_follows_a_forwarded_pattern() {
    let rig = Rig::start().await;
    let mut client = rig.used().await;
    let effect = Effect::ResetOnPattern { pattern: b"COMMIT".to_vec(), forward: true };
    rig.set(effect, Direction::TowardUpstream);
    client.write_all(b"COMMIT").await.unwrap();
    let mut answer = vec![];
    let ended = timeout(DEADLINE, client.read_to_end(&mut answer)).await.unwrap();
    assert_eq!((ended.unwrap_err().kind(), answer), (ErrorKind::ConnectionReset, vec![]));
    rig.until_received(b"helloCOMMIT").await;
}

#[tokio::test]
async fn a_delay_and_a_trickle_hold_bytes_back() {
    let rig = Rig::start().await;
    let mut client = rig.used().await;
    rig.set(Effect::Delay(Duration::from_millis(100)), Direction::Both);
    let began = Instant::now();
    exchange(&mut client, b"there and back").await;
    assert!(began.elapsed() >= Duration::from_millis(200));
    rig.set(Effect::Trickle { bytes_per_second: 1000.try_into().unwrap() }, Direction::TowardClient);
    let began = Instant::now();
    exchange(&mut client, &[7; 400]).await;
    // The first fiftieth goes at once.
    assert!(began.elapsed() >= Duration::from_millis(300));
}

/// What is sent after `set` has returned meets the fault, however busy the connection was before.
#[tokio::test]
async fn a_black_hole_of_one_direction_holds_answers_back_and_loses_none() {
    let rig = Rig::start().await;
    let mut client = rig.used().await;
    for round in 0..20_u8 {
        exchange(&mut client, &[round; 1000]).await;
        rig.set(Effect::BlackHole, Direction::TowardClient);
        client.write_all(&[round]).await.unwrap();
        let held = timeout(SILENCE / 10, client.read_u8()).await;
        assert!(held.is_err(), "round {round}: {held:?}");
        rig.proxy.clear("echo").unwrap();
        assert_eq!(timeout(DEADLINE, client.read_u8()).await.unwrap().unwrap(), round);
    }
    rig.set(Effect::BlackHole, Direction::Both);
    let mut new = rig.connect().await;
    new.write_all(b"x").await.unwrap();
    assert!(timeout(SILENCE, new.read_u8()).await.is_err());
    assert_eq!(rig.received.lock().unwrap().len(), 1, "a dead link carries no connection request");
    rig.proxy.clear("echo").unwrap();
    assert_eq!(timeout(DEADLINE, new.read_u8()).await.unwrap().unwrap(), b'x');
}

#[tokio::test]
async fn open_connections_stay_where_they_are_and_new_ones_work() {
    let (rig, other) = (Rig::start().await, Rig::start().await);
    let mut client = rig.used().await;
    rig.proxy.redirect("echo", other.proxy.address("echo").unwrap().to_string()).await.unwrap();
    exchange(&mut client, b" again").await;
    exchange(&mut rig.connect().await, b"new").await;
    other.until_received(b"new").await;
    rig.proxy.silence_open("echo").unwrap();
    client.write_all(b"x").await.unwrap();
    assert!(timeout(SILENCE, client.read_u8()).await.is_err());
    exchange(&mut rig.connect().await, b"newer").await;
    rig.until_received(b"hello again").await;
    rig.set(Effect::Cut, Direction::Both);
    let ended = timeout(DEADLINE, client.read_u8()).await.expect("a cut does not reset a silent connection");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_url_leads_through_the_proxy_without_its_own_host() {
    let upstream = |url| Route::to("route", url).map(|route| route.upstream);
    assert_eq!(upstream("postgres://me:p@127.0.0.1:5432/shop?a=@b").unwrap(), "127.0.0.1:5432");
    assert_eq!(upstream("http://localhost:1").unwrap(), "localhost:1");
    assert!(matches!(upstream("localhost:1"), Err(Error::NoUrl)));
}

#[tokio::test]
async fn public_addresses_and_invalid_faults_are_refused() {
    let route = |listen: &str, upstream: &str, container_network| Route {
        listen: listen.parse().unwrap(),
        container_network,
        ..Route::new("route", upstream)
    };
    for upstream in ["8.8.8.8:1", "169.254.169.254:1", "0.0.0.0:1", "[2001:4860::1]:1", "[fe80::1]:1"] {
        let refused = Proxy::start(vec![route("127.0.0.1:0", upstream, false)]).await;
        assert!(matches!(refused, Err(Error::RefusedUpstream(..))), "{upstream}");
    }
    for (listen, container_network) in [("0.0.0.0:0", false), ("10.0.0.1:0", false), ("8.8.8.8:0", true)] {
        let refused = Proxy::start(vec![route(listen, "127.0.0.1:1", container_network)]).await;
        assert!(matches!(refused, Err(Error::RefusedListenAddress(_))), "{listen}");
    }
    assert!(Proxy::start(vec![route("0.0.0.0:0", "10.1.2.3:1", true)]).await.is_ok());
    let rig = Rig::start().await;
    let invalid = [
        Fault::new(Effect::Cut, Direction::Both, Duration::from_secs(601)),
        Fault::new(Effect::Cut, Direction::Both, LASTS).times(1),
        Fault::new(Effect::ResetAfter { bytes: 0 }, Direction::Both, LASTS),
        Fault::new(Effect::ResetOnPattern { pattern: vec![], forward: true }, Direction::Both, LASTS),
        Fault::new(Effect::Delay(Duration::from_secs(61)), Direction::Both, LASTS),
    ];
    for fault in invalid {
        assert!(matches!(rig.proxy.set("echo", fault.clone()), Err(Error::InvalidFault(_))), "{fault:?}");
    }
    assert!(matches!(rig.proxy.clear("other"), Err(Error::UnknownRoute(_))));
}

/// As the containers use it.
#[tokio::test]
async fn the_program_sets_and_clears_faults_over_http() {
    let rig = Rig::start().await;
    let upstream = rig.proxy.address("echo").unwrap();
    // A free port that was just free: the program prints only where its control API listens.
    let listen = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_fault-proxy"))
        .args(["--route", &format!("echo={listen},{upstream}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut control = String::new();
    Lines::new(program.stdout.take().unwrap()).read_line(&mut control).unwrap();
    let url = format!("http://{}/routes", control.trim());
    let client = reqwest::Client::new();
    let mut connection = TcpStream::connect(listen).await.unwrap();
    exchange(&mut connection, b"hello").await;
    let cut = Fault::new(Effect::Cut, Direction::Both, LASTS);
    let set = client.put(format!("{url}/echo")).json(&cut).send().await.unwrap();
    assert_eq!(set.status(), 204);
    assert!(is_reset(&mut connection).await);
    let shown: serde_json::Value = client.get(&url).send().await.unwrap().json().await.unwrap();
    assert_eq!(shown, serde_json::json!({ "echo": { "refused": 0, "resets": 1 } }));
    assert_eq!(client.put(format!("{url}/other")).json(&cut).send().await.unwrap().status(), 404);
    assert_eq!(client.put(format!("{url}/echo")).json(&cut.times(1)).send().await.unwrap().status(), 400);
    assert_eq!(client.delete(format!("{url}/echo")).send().await.unwrap().status(), 204);
    exchange(&mut TcpStream::connect(listen).await.unwrap(), b"again").await;
    program.kill().unwrap();
    program.wait().unwrap();
}
