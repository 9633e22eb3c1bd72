use std::{sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use crate::{connection, open_connection::OpenConnection, route_state::RouteState};

/// The pause after a failed accept: without file descriptors, the loop would use a whole processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts the connections of one route, for as long as it is polled. Dropping it ends all of them.
pub(crate) async fn accept(listener: TcpListener, route: Arc<RouteState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => admit(client, &route, &mut connections),
                Err(cause) => {
                    tracing::warn!(route = route.route.name, "failed to accept a connection: {cause}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => if let Err(cause) = ended {
                tracing::error!(route = route.route.name, "failed to carry a connection: {cause}");
            },
        }
    }
}

fn admit(client: TcpStream, route: &Arc<RouteState>, connections: &mut JoinSet<()>) {
    let is_cut = route.faults.list().is_cut();
    let admitted = if is_cut { None } else { OpenConnection::admit(route) };
    let Some(open) = admitted else {
        connection::reset(client);
        route.counters.refused();
        return;
    };
    // The proxy must not add the delay of Nagle's algorithm. This fails only for a socket that is reset already.
    let _ = client.set_nodelay(true);
    let route = Arc::clone(route);
    connections.spawn(async move { connection::carry(client, &route, open).await });
}
