use std::{
    io::{self, ErrorKind},
    time::{Duration, Instant},
};

use fault_proxy::{Direction, Effect, Fault, Proxy, Route, Stats};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};

/// The limit of every wait. Only a failing test reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The duration of a fault that must not end by itself during a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// The duration of a fault that must end by itself during a test.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// How long a socket must be silent. A longer time finds more bugs; it cannot make a correct proxy fail.
const SILENCE: Duration = Duration::from_millis(100);

pub(crate) const ROUTE: &str = "route";

pub(crate) const ONE_WAY: [Direction; 2] = [Direction::TowardUpstream, Direction::TowardClient];

/// A proxy with one route, and the listener that is its upstream.
pub(crate) struct Setup {
    pub(crate) proxy: Proxy,
    pub(crate) upstream: TcpListener,
}

impl Setup {
    pub(crate) async fn start() -> Self {
        Self::with(|route| route).await
    }

    pub(crate) async fn with(change: impl FnOnce(Route) -> Route) -> Self {
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let route = Route::new(ROUTE, upstream.local_addr().unwrap().to_string());
        Self { proxy: Proxy::start(vec![change(route)]).await.unwrap(), upstream }
    }

    /// A proxy in front of a port that refuses connections, and the socket that keeps the port.
    ///
    /// Another test could take a port that nothing keeps.
    pub(crate) async fn refusing() -> (Proxy, TcpSocket) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let upstream = socket.local_addr().unwrap().to_string();
        (Proxy::start(vec![Route::new(ROUTE, upstream)]).await.unwrap(), socket)
    }

    /// A proxy in front of a server that sends every byte back.
    pub(crate) async fn echo() -> Proxy {
        let Self { proxy, upstream } = Self::start().await;
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = upstream.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    // Fails when a fault resets the connection.
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        proxy
    }

    /// Opens a connection and returns the client's end and the upstream's end.
    pub(crate) async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = connect(&self.proxy).await;
        let (server, _) = within(self.upstream.accept()).await.unwrap();
        (client, server)
    }

    /// Opens a connection and returns the end that sends in `direction`, then the end that receives.
    pub(crate) async fn connect_along(&self, direction: Direction) -> (TcpStream, TcpStream) {
        let (client, server) = self.connect().await;
        along(direction, client, server)
    }

    pub(crate) async fn inject(&self, effect: Effect, direction: Direction, lasts: Duration) {
        self.inject_fault(Fault::new(effect, direction, lasts)).await;
    }

    pub(crate) async fn inject_fault(&self, fault: Fault) {
        within(self.proxy.inject(ROUTE, fault)).await.unwrap();
    }

    pub(crate) async fn clear(&self) {
        within(self.proxy.clear(ROUTE)).await.unwrap();
    }

    /// Waits until this many bytes were forwarded in `direction`.
    pub(crate) async fn until_forwarded(&self, direction: Direction, bytes: usize) {
        let forwarded = |stats: &Stats| match direction {
            Direction::TowardUpstream => stats.bytes_to_upstream,
            _ => stats.bytes_to_client,
        };
        self.proxy.until(ROUTE, DEADLINE, |stats| forwarded(stats) == bytes as u64).await.unwrap();
    }

    pub(crate) async fn until_resets(&self, resets: u64) {
        self.proxy.until(ROUTE, DEADLINE, |stats| stats.resets == resets).await.unwrap();
    }
}

pub(crate) fn along(direction: Direction, client: TcpStream, server: TcpStream) -> (TcpStream, TcpStream) {
    match direction {
        Direction::TowardUpstream => (client, server),
        _ => (server, client),
    }
}

pub(crate) async fn connect(proxy: &Proxy) -> TcpStream {
    let stream = within(TcpStream::connect(proxy.address(ROUTE).unwrap())).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Fails the test at the deadline.
pub(crate) async fn within<T>(waiting: impl Future<Output = T>) -> T {
    timeout(DEADLINE, waiting).await.unwrap()
}

pub(crate) async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    within(stream.write_all(bytes)).await.unwrap();
}

pub(crate) async fn receive(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Checks that one end gets exactly these bytes of the other.
pub(crate) async fn expect_bytes(stream: &mut TcpStream, expected: &[u8]) {
    let received = receive(stream, expected.len()).await;
    // Without the bytes in the message: some contents have megabytes.
    assert!(received == expected, "other bytes arrived than were sent");
}

/// Reads to the end, which must be an end of file, and returns the bytes before it.
pub(crate) async fn read_to_end_of_file(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

/// Reads to the end, which must be a reset, and returns the bytes before it.
pub(crate) async fn read_to_reset(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = within(stream.read_to_end(&mut bytes)).await;
    assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    bytes
}

/// Checks that an end gets neither bytes nor an end of file nor a reset for a while.
pub(crate) async fn expect_silence(stream: &mut TcpStream) {
    let read = timeout(SILENCE, stream.read_u8()).await;
    assert!(read.is_err(), "the end was not silent: {read:?}");
}

/// Passes bytes in `direction` several times. A proxy that still forwards the other way has had its turn by then.
pub(crate) async fn round_trips(sender: &mut TcpStream, receiver: &mut TcpStream) {
    for turn in 0..20 {
        send(sender, &[turn]).await;
        expect_bytes(receiver, &[turn]).await;
    }
}

/// Sends one message to an echo server over a new connection and checks the answer.
pub(crate) async fn echo(proxy: &Proxy, message: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(proxy.address(ROUTE).unwrap()).await?;
    stream.write_all(message).await?;
    let mut answer = vec![0; message.len()];
    stream.read_exact(&mut answer).await?;
    assert!(answer == message, "other bytes arrived than were sent");
    Ok(())
}

/// Injects a fault under which [`echo`] fails, repeats that until it succeeds, and checks that the fault had ended.
pub(crate) async fn expect_echo_after_the_end(proxy: &Proxy, message: &[u8], effect: Effect) {
    let injected_at = Instant::now();
    proxy.inject(ROUTE, Fault::new(effect, Direction::Both, SHORT)).await.unwrap();
    within(async {
        while echo(proxy, message).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(injected_at.elapsed() >= SHORT);
}

/// Bytes without a period that a chunk size could hide (xorshift).
pub(crate) fn content(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..count).map(|_| next()).collect()
}
