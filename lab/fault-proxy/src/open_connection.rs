use std::sync::Arc;

use crate::route_state::RouteState;

/// Counts one connection as open until it is dropped, also when its task is aborted.
pub(crate) struct OpenConnection(Arc<RouteState>);

impl OpenConnection {
    /// Returns nothing when the route is full.
    pub(crate) fn admit(route: &Arc<RouteState>) -> Option<Self> {
        route.counters.open(route.route.max_connections).then(|| Self(Arc::clone(route)))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counters.closed();
    }
}
