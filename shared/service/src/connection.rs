//! Optional. Without it: clients that only hold connections keep others out, and the health check too.
//!
//! Bounds the connections of a listener, and how long a client may leave an answer unread.

use std::{
    future::{Ready, ready},
    io,
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
    extract::Request,
    http::{StatusCode, header::CONTENT_LENGTH},
    middleware::{AddExtension, Next},
    response::{IntoResponse, Response},
};
use axum_server::accept::Accept;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, futures::OwnedNotified},
    time::{Sleep, sleep, timeout},
};
use tower::Layer as _;

use crate::problem::Problem;

/// How long a client may take to send a request's head, how long a connection may be idle, and how long a client may read
/// nothing of an answer. A client that sends one byte a minute would otherwise keep its connection open forever.
pub(crate) const CLIENT_DEADLINE: Duration = Duration::from_secs(15);

/// Connections of one listener at the same time, if the process may open enough files.
const MAX_CONNECTIONS: usize = 1024;

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

fn count_closed(reason: &'static str) {
    metrics::counter!("http_connections_closed_total", "reason" => reason).increment(1);
}

/// Whether the service works for a request whose client has sent all of it. Such a connection is not closed for another
/// one.
pub(crate) type InProgress = Arc<AtomicBool>;

/// Accepts connections up to a limit. When three quarters of the places are taken, each new connection closes the one whose
/// client has been silent the longest, so that clients that only hold connections do not keep a health check out.
#[derive(Clone)]
pub(crate) struct BoundedAcceptor {
    max: usize,
    places: Arc<Semaphore>,
    /// Wakes its waiters in the order in which they began to wait.
    silent: Arc<Notify>,
}

impl BoundedAcceptor {
    pub(crate) fn new() -> Self {
        let max = max_connections();
        Self { max, places: Arc::new(Semaphore::new(max)), silent: Arc::default() }
    }

    fn admit(&self, stream: TcpStream) -> io::Result<Connection> {
        let place = self.places.clone().try_acquire_owned().map_err(|error| {
            count_closed("full");
            io::Error::other(error)
        })?;
        if self.places.available_permits() < self.max / 4 {
            self.silent.notify_one();
        }
        stream.set_nodelay(true)?;
        let silent = self.silent.clone();
        Ok(Connection {
            stream,
            in_progress: Arc::default(),
            silent,
            turn: None,
            unread: None,
            _place: place,
        })
    }
}

impl<S> Accept<TcpStream, S> for BoundedAcceptor {
    type Stream = Connection;
    type Service = AddExtension<S, InProgress>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let admitted = self.admit(stream);
        ready(admitted.map(|connection| {
            let service = Extension(connection.in_progress.clone()).layer(service);
            (connection, service)
        }))
    }
}

/// A connection that ends when its client reads nothing for [`CLIENT_DEADLINE`], or when its place is needed.
pub(crate) struct Connection {
    stream: TcpStream,
    in_progress: InProgress,
    silent: Arc<Notify>,
    /// While the client is silent: ready when this connection is the one to close.
    turn: Option<Pin<Box<OwnedNotified>>>,
    /// While an answer waits for the client to read: the deadline.
    unread: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Called while the client neither sends nor reads: an error when the connection must end.
    fn poll_end<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let reason = if self.unread.as_mut().is_some_and(|unread| unread.as_mut().poll(cx).is_ready()) {
            "unread"
        } else if self.in_progress.load(Relaxed) {
            self.turn = None;
            return Poll::Pending;
        } else {
            let turn = self.turn.get_or_insert_with(|| Box::pin(self.silent.clone().notified_owned()));
            match turn.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => "silent",
            }
        };
        count_closed(reason);
        if self.unread.is_some() {
            // Else the kernel would keep what was not read for minutes. An error here means that the client is gone.
            let _ = self.stream.set_zero_linger();
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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
        self.turn = None;
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_pending() {
            self.unread.get_or_insert_with(|| Box::pin(sleep(CLIENT_DEADLINE)));
            return self.poll_end(cx);
        }
        (self.turn, self.unread) = (None, None);
        written
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
    match timeout(BODY_DEADLINE, Limited::new(&mut body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(read)) => {
            let in_progress: Option<InProgress> = parts.extensions.get().cloned();
            let set = |to| in_progress.iter().for_each(|flag| flag.store(to, Relaxed));
            set(true);
            let response = next.run(Request::from_parts(parts, Body::from(read.to_bytes()))).await;
            set(false);
            response
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => too_large(body),
        Ok(Err(error)) => Problem::unreadable_body(error.to_string()).into_response(),
        Err(_) => slow_body().into_response(),
    }
}

/// Answers at once, and goes on reading for a while: a connection that is closed while bytes arrive is reset, and the
/// client might lose the answer, or that to its next request.
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
