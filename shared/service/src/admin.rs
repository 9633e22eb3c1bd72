use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    str::FromStr,
    time::Duration,
};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::header,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use crate::{
    environment, http,
    problem::{Problem, complete},
};

/// The shortest token, in bytes. Wrong guesses are not counted, so it has to be long.
const MIN_TOKEN_BYTES: usize = 16;

/// How long a request may take. A page of a replay takes far less.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// Requests at the same time; further ones are answered with 503.
const MAX_REQUESTS: usize = 4;

/// The bearer token of the admin API. Never printed.
#[derive(Clone)]
pub struct Token(String);

impl FromStr for Token {
    type Err = String;

    fn from_str(token: &str) -> Result<Self, String> {
        // Visible ASCII: an HTTP header carries it without quoting.
        let valid = token.len() >= MIN_TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
        if valid { Ok(Self(token.into())) } else { Err("16 characters or more, without blanks".into()) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }
}

/// Serves the admin API on an address of its own, which is off unless it is configured.
pub(crate) struct AdminServer {
    listener: TcpListener,
    token: Token,
}

impl AdminServer {
    /// Listens, if an address is configured. An address without a token ends the process: an unprotected admin API would be
    /// an invalid setting that no one notices. `prefix` is that of the service's variables, such as `ORDERS_`.
    pub(crate) fn bind(prefix: &str, address: Option<SocketAddr>, token: Option<&Token>) -> Option<Self> {
        let address = address?;
        let Some(token) = token else {
            environment::exit_invalid_config(&format!(
                "{prefix}ADMIN_TOKEN is missing: {prefix}ADMIN_ADDRESS is set, and the admin API needs a token"
            ));
        };
        let listener = http::bind(&format!("{prefix}ADMIN_ADDRESS"), address);
        Some(Self { listener, token: token.clone() })
    }

    /// Serves `routes` to clients with the token, until `stop`.
    ///
    /// # Errors
    /// When the listener fails.
    pub(crate) async fn serve(self, routes: Router, stop: CancellationToken) -> anyhow::Result<()> {
        // The token is checked before anything else, whatever the path.
        let app = http::limited(routes, MAX_REQUESTS, REQUEST_DEADLINE)
            .layer(middleware::from_fn_with_state(self.token, authorize))
            .layer(middleware::map_response(
                |response| async move { complete(response, Problem::from_status) },
            ));
        http::serve(self.listener, app, stop).await
    }
}

/// Rejects requests without the token, and puts the operator's name into the log of all that follows. All operators share
/// one token, so the name is what the client claims (`X-Operator`).
async fn authorize(State(token): State<Token>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, shown)| shown);
    // In constant time, so that the duration does not tell how much of a guess was right. The length is no secret.
    let authorized = shown.is_some_and(|shown| shown.as_bytes().ct_eq(token.0.as_bytes()).into());
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    if !authorized {
        tracing::warn!(?peer, path = request.uri().path(), "admin request without a valid token");
        return Problem::unauthorized("send Authorization: Bearer with the token of ADMIN_TOKEN")
            .into_response();
    }
    let name = request.headers().get("x-operator").and_then(|value| value.to_str().ok());
    let name: String = name.unwrap_or("unnamed").chars().take(100).collect();
    let span = info_span!("operator", who = name, peer = peer.map(tracing::field::display));
    next.run(request).instrument(span).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_enough_and_never_shown() {
        for short in
            ["", "hunter2", "fifteen-letters", "a token with blanks in it", "tab\tis-no-letter-at-all"]
        {
            assert!(short.parse::<Token>().is_err(), "{short:?}");
        }
        let token: Token = "sixteen-letters!".parse().unwrap();
        assert!(!format!("{token:?}").contains("sixteen"));
    }
}
