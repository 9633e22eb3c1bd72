//! One connection: the client's socket, the upstream's socket, and how both end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    active_faults::FaultList,
    addresses,
    drained::drained,
    failed_sockets::FailedSockets,
    fault::Toward,
    fault_view::FaultView,
    open_connection::OpenConnection,
    pump::{Pump, Reset},
    route_state::RouteState,
};

/// How long a connection to the upstream may take, with the resolution of its name.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Why a connection is no longer carried.
enum End {
    /// Both streams have ended, and both ends were passed on.
    Closed,
    ConnectFailed,
    Reset(Reset),
    Cut(Arc<FaultList>),
}

/// Carries one connection until it ends.
pub(crate) async fn carry(mut client: TcpStream, route: &RouteState, open: OpenConnection) {
    let mut upstream = None;
    let mut view = FaultView::new(&route.faults);
    let end = tokio::select! {
        biased;
        cut = view.cut() => End::Cut(cut),
        end = forward(&mut client, &mut upstream, route) => end,
    };
    match end {
        End::Closed => {}
        End::ConnectFailed => reset(client),
        End::Cut(cut) => {
            cut_off(client, upstream, &cut, view, route).await;
        }
        End::Reset(why) => {
            drop(view);
            let (toward, is_fault) = match why {
                Reset::Fault(toward) => (toward, true),
                Reset::Peer(toward) => (toward, false),
            };
            let (source, sink) = match toward {
                Toward::Upstream => (Some(client), upstream),
                Toward::Client => (upstream, Some(client)),
            };
            // The source first: it gets no answer to its last bytes, and need not wait until they have arrived.
            if let Some(source) = source {
                reset(source);
            }
            if let Some(sink) = sink {
                drained(&sink).await;
                reset(sink);
            }
            if is_fault {
                route.counters.reset();
            }
        }
    }
    drop(open);
}

/// Connects to the upstream and forwards both directions.
async fn forward(client: &mut TcpStream, upstream: &mut Option<TcpStream>, route: &RouteState) -> End {
    // A dead link carries no connection request either.
    FaultView::new(&route.faults).until(|list| !list.is_black_hole(Toward::Upstream)).await;
    let upstream = match connect(&route.route.upstream).await {
        Ok(connected) => upstream.insert(connected),
        Err(cause) => {
            tracing::warn!(route = route.route.name, "failed to connect to the upstream: {cause}");
            route.counters.connect_failed();
            // A dead link does not carry the refusal of the upstream to the client.
            FaultView::new(&route.faults).until(|list| !list.is_black_hole(Toward::Client)).await;
            return End::ConnectFailed;
        }
    };
    let failed = FailedSockets::default();
    let (from_client, to_client) = client.split();
    let (from_upstream, to_upstream) = upstream.split();
    let toward_upstream = Pump::new(Toward::Upstream, (from_client, to_upstream), &failed, route).run();
    let toward_client = Pump::new(Toward::Client, (from_upstream, to_client), &failed, route).run();
    // One task polls both, and the first reset drops both: nothing is forwarded between a reset and its execution.
    match tokio::try_join!(toward_upstream, toward_client) {
        Err(why) => End::Reset(why),
        Ok(_) => End::Closed,
    }
}

async fn connect(upstream: &str) -> io::Result<TcpStream> {
    let connecting = async {
        let mut failed = io::ErrorKind::NotFound.into();
        for address in addresses::resolve(upstream).await.map_err(io::Error::other)? {
            match connect_to(address).await {
                Ok(stream) => return Ok(stream),
                Err(cause) => failed = cause,
            }
        }
        Err(failed)
    };
    timeout(CONNECT_DEADLINE, connecting).await?
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A cut drops this future. The upstream may have accepted by then, and must see a reset.
    socket.set_zero_linger()?;
    let stream = socket.connect(address).await?;
    #[expect(
        deprecated,
        reason = "only a linger time above zero blocks the thread; this turns lingering off"
    )]
    stream.set_linger(None)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Resets the sides that the cut covers, then holds the other side until its cut or the end of all cuts.
async fn cut_off(
    client: TcpStream,
    upstream: Option<TcpStream>,
    cut: &FaultList,
    view: FaultView,
    route: &RouteState,
) {
    let mut held = None;
    for (toward, stream) in [(Toward::Client, Some(client)), (Toward::Upstream, upstream)] {
        let Some(stream) = stream else { continue };
        if cut.cuts(toward) { reset(stream) } else { held = Some((toward, stream)) }
    }
    route.counters.reset();
    // The injection waits for this: the sides that the cut covers are reset when it returns.
    drop(view);
    if let Some((toward, stream)) = held {
        FaultView::new(&route.faults).until(|list| list.cuts(toward) || !list.is_cut()).await;
        reset(stream);
    }
}

/// Closes a connection with a reset: the peer sees ECONNRESET, not an end of file.
pub(crate) fn reset(stream: TcpStream) {
    // Fails only for a socket that the peer has reset already.
    let _ = stream.set_zero_linger();
    drop(stream);
}
