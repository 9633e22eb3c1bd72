//! Optional. Without it: clients that only hold connections keep others out, and the health check too.
//!
//! Bounds the connections of a listener, and how long a client may leave an answer unread.

use std::{
    future::{Ready, ready},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension,
    body::Body,
    extract::{Request, State, connect_info::Connected},
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_LENGTH},
    },
    middleware::{AddExtension, Next},
    response::{IntoResponse, Response},
};
use axum_server::{AddrListener, Address, accept::Accept};
use http_body_util::BodyExt as _;
use rustix::{
    net::{RecvFlags, listen, recv},
    process::{Resource, getrlimit, setrlimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore, futures::OwnedNotified},
    time::{Instant, Sleep, sleep, timeout},
};
use tower::Layer as _;

use crate::problem::Problem;

/// How long a client may take to send a request's head, how long a connection may be idle, and how long a client may read
/// nothing of an answer. A client that sends one byte a minute would otherwise keep its connection open forever.
pub(crate) const CLIENT_DEADLINE: Duration = Duration::from_secs(15);

/// Connections of one listener at the same time, if the process may open enough files.
const MAX_CONNECTIONS: usize = 1024;

/// Connections that wait in the kernel's queue for a place. Beyond that their clients send again after a second, later after
/// three and seven.
const MAX_QUEUED: i32 = 4096;

/// A quarter of the file descriptors for each of the two listeners. The rest is for the database and the broker: without a
/// descriptor the relay could not connect again.
fn max_connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Many shells and systemd set a low soft limit, for programs that use select(2).
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
    let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    let max = files.map_or(MAX_CONNECTIONS, |files| MAX_CONNECTIONS.min(files / 4));
    if max < MAX_CONNECTIONS {
        tracing::warn!(max, "fewer connections than usual, because the limit of open files is low");
    }
    max
}

/// Whether the service handles a request that has arrived in full. Such a connection is not closed for another one.
pub(crate) type InProgress = Arc<AtomicBool>;

/// How long a client has been silent at least when its connection is closed for another one. A client that has just
/// connected is about to send its request, on a busy machine possibly a few tenths of a second later.
const MIN_SILENCE: Duration = Duration::from_secs(1);

/// The time between two attempts to close a silent connection for one that waits.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Accepts connections up to a limit. At the limit, further ones wait in the kernel's queue; each closes the one whose client
/// has been silent the longest, so that clients that only hold connections do not keep a health check out. A connection whose
/// request has arrived is never closed for another one: its client would see a reset and reconnect, and an overloaded machine
/// would do little but accept connections. If no client is silent, [`give_place`] ends a connection with its next answer.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// Whether a connection waits for a place.
    wanted: Wanted,
    /// Wakes its waiters in the order in which they began to wait.
    silent: Arc<Notify>,
}

/// Whether a connection waits for a place of its listener.
pub(crate) type Wanted = Arc<AtomicBool>;

/// Ends a connection after this answer if another one waits for its place. Without it, clients that keep as many connections as
/// there are places and send a request now and then would keep all others out, and the health check too.
pub(crate) async fn give_place(State(wanted): State<Wanted>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    // One for each attempt to find a place.
    if wanted.swap(false, Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The address of a client.
#[derive(Clone)]
pub(crate) struct Peer(SocketAddr);

impl Address for Peer {
    type Stream = Connection;
    type Listener = BoundedListener;
}

impl Connected<Peer> for SocketAddr {
    fn connect_info(peer: Peer) -> Self {
        peer.0
    }
}

impl BoundedListener {
    pub(crate) fn new(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self::over(TcpListener::from_std(listener)?))
    }

    fn over(listener: TcpListener) -> Self {
        // Again, for a longer queue than Rust asks for. Where the kernel refuses, the shorter one stays.
        let _ = listen(&listener, MAX_QUEUED);
        let places = Arc::new(Semaphore::new(max_connections()));
        // From the start: an alert reads its increase, and would not see the first value of a series.
        for reason in ["silent", "unread"] {
            metrics::counter!("http_connections_closed_total", "reason" => reason).absolute(0);
        }
        Self { listener, places, wanted: Arc::default(), silent: Arc::default() }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted.clone()
    }

    /// Waits for a place. While there is none, asks silent connections for theirs, one at a time.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        loop {
            self.silent.notify_one();
            self.wanted.store(true, Relaxed);
            if let Ok(place) = timeout(RETRY_INTERVAL, self.places.clone().acquire_owned()).await {
                self.wanted.store(false, Relaxed);
                // If no connection was silent, the request is still there: it would close the next one that falls silent.
                tokio::select! {
                    biased;
                    () = self.silent.notified() => {}
                    () = ready(()) => {}
                }
                return place.ok();
            }
        }
    }
}

impl AddrListener<Connection, Peer> for BoundedListener {
    async fn bind_to(address: Peer) -> io::Result<Self> {
        Ok(Self::over(TcpListener::bind(address.0).await?))
    }

    async fn accept_stream(&self) -> io::Result<(Connection, Peer)> {
        // The caller tries again, and says nothing.
        let accepted = self.listener.accept().await;
        let (stream, peer) =
            accepted.inspect_err(|error| tracing::warn!(%error, "failed to accept a connection"))?;
        let place = self.place().await.ok_or(io::ErrorKind::NotConnected)?;
        // Fails only if the client is gone; the first read reports that.
        let _ = stream.set_nodelay(true);
        let connection = Connection {
            stream,
            in_progress: Arc::default(),
            silent: self.silent.clone(),
            silent_since: None,
            turn: None,
            unread: None,
            _place: place,
        };
        Ok((connection, Peer(peer)))
    }

    fn get_local_addr(&self) -> io::Result<Peer> {
        self.listener.local_addr().map(Peer)
    }
}

/// Gives the handlers of a connection its [`InProgress`].
#[derive(Clone)]
pub(crate) struct Acceptor;

impl<S> Accept<Connection, S> for Acceptor {
    type Stream = Connection;
    type Service = AddExtension<S, InProgress>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, connection: Connection, service: S) -> Self::Future {
        let service = Extension(connection.in_progress.clone()).layer(service);
        ready(Ok((connection, service)))
    }
}

/// A connection that ends when its client reads nothing for [`CLIENT_DEADLINE`], or when its place is needed.
pub(crate) struct Connection {
    stream: TcpStream,
    in_progress: InProgress,
    silent: Arc<Notify>,
    /// Since when nothing has arrived.
    silent_since: Option<Instant>,
    /// While the client is silent: ready when this connection is the one to close.
    turn: Option<Pin<Box<OwnedNotified>>>,
    /// While an answer waits for the client to read: the deadline.
    unread: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Called while the client neither sends nor reads: an error when the connection must end.
    fn poll_end<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        let reason = if self.unread.as_mut().is_some_and(|unread| unread.as_mut().poll(cx).is_ready()) {
            "unread"
        } else if self.in_progress.load(Relaxed) {
            self.turn = None;
            return Poll::Pending;
        } else {
            loop {
                let turn = self.turn.get_or_insert_with(|| Box::pin(self.silent.clone().notified_owned()));
                if turn.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                // A client that leaves an answer unread waits for none of what it has sent after that.
                if since.elapsed() >= MIN_SILENCE && (self.unread.is_some() || !self.has_arrived()) {
                    break "silent";
                }
                self.turn = None;
            }
        };
        metrics::counter!("http_connections_closed_total", "reason" => reason).increment(1);
        if self.unread.is_some() {
            // Else the kernel would keep what was not read for minutes. An error here means that the client is gone.
            let _ = self.stream.set_zero_linger();
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether bytes have arrived that nobody has read. Asks the kernel: under load tokio learns of them later.
    fn has_arrived(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.stream, &mut [0_u8; 1], flags).is_ok_and(|(read, _)| read > 0)
    }

    /// After an attempt to write.
    fn written(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            self.unread.get_or_insert_with(|| Box::pin(sleep(CLIENT_DEADLINE)));
            return self.poll_end(cx);
        }
        (self.silent_since, self.turn, self.unread) = (None, None, None);
        written
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            return self.poll_end(cx);
        }
        (self.silent_since, self.turn) = (None, None);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(written, cx)
    }

    /// Without it hyper copies each body into a buffer of the connection and keeps that: 1.5 MB for each reader of `/docs`.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How long a client may take to send a body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// The largest body, in bytes. An order of a hundred lines takes about six thousand.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// How much of a body that is too large is read, so that its client can read the answer.
const MAX_DISCARDED_BYTES: usize = 4 * 1024 * 1024;

/// Reads the whole body of a request before anything else is done for it. A layer around the limit of concurrent requests:
/// inside it, a few hundred clients that send a byte a second would take all places from the others.
pub(crate) async fn read_body(request: Request, next: Next) -> Response {
    let (parts, mut body) = request.into_parts();
    let announced =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        return too_large(body);
    }
    // Into one buffer: each frame that is kept as it came would keep 8 KiB, also for one byte.
    let reading = async {
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            if read.len() + data.len() > MAX_BODY_BYTES {
                return Ok(None);
            }
            read.extend_from_slice(&data);
        }
        Ok::<_, axum::Error>(Some(read))
    };
    let read = timeout(BODY_DEADLINE, reading).await;
    match read {
        Ok(Ok(Some(read))) => {
            let in_progress: Option<InProgress> = parts.extensions.get().cloned();
            let set = |to| in_progress.iter().for_each(|flag| flag.store(to, Relaxed));
            set(true);
            let response = next.run(Request::from_parts(parts, Body::from(read))).await;
            set(false);
            response
        }
        Ok(Ok(None)) => too_large(body),
        Ok(Err(error)) => Problem::unreadable_body(error.to_string()).into_response(),
        Err(_) => {
            tokio::spawn(timeout(BODY_DEADLINE, discard(body)));
            slow_body().into_response()
        }
    }
}

/// Answers at once, and goes on reading for a while: a connection that is closed while bytes arrive is reset, and the
/// client might lose the answer, or the one to its next request.
fn too_large(body: Body) -> Response {
    tokio::spawn(timeout(BODY_DEADLINE, discard(body)));
    Problem::too_large().into_response()
}

/// Reads what the client sends, up to a limit, and drops it.
async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// The body did not arrive in time.
pub fn slow_body() -> Problem {
    Problem::new(StatusCode::REQUEST_TIMEOUT, "slow-body", "The body took too long to arrive")
        .detail(format!("a body must arrive within {} s", BODY_DEADLINE.as_secs()))
}
