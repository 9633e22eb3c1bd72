//! The operators' door: a listener apart from the public one, off unless it is asked for, closed without the token.

use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    str::FromStr,
    time::Duration,
};

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    extract::{ConnectInfo, DefaultBodyLimit, FromRequestParts, Query, Request, State},
    http::{StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, de::DeserializeOwned};
use subtle::ConstantTimeEq;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tower::{
    ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer, timeout::TimeoutLayer,
};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::{Instrument, info_span};

use crate::{
    http,
    problem::{Problem, complete, overloaded_or_late},
    settings,
};

/// The shortest token that is taken, in bytes: nobody counts the wrong guesses.
const SHORTEST_TOKEN: usize = 16;

/// The largest body, in bytes: a thousand ids.
const LARGEST_BODY: usize = 64 * 1024;

/// How long a request may take. A replay of many is asked for in pages that are small against this.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// Requests at the same time; more are answered with 503. Operators take turns.
const MAX_REQUESTS: usize = 4;

/// What an operator has to show. Never printed.
#[derive(Clone)]
pub struct Token(String);

impl FromStr for Token {
    type Err = String;

    fn from_str(token: &str) -> Result<Self, String> {
        // What an HTTP header can carry without quoting.
        let sound = token.len() >= SHORTEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic());
        if sound { Ok(Self(token.into())) } else { Err("16 characters or more, without blanks".into()) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }
}

/// The door, not open yet.
pub struct Admin {
    listener: TcpListener,
    token: Token,
}

impl Admin {
    /// Takes the port, if there is an address. One without a token ends the process: an open door would be a wrong
    /// setting that nobody notices. `prefix` is that of the service's variables, such as `ORDERS`.
    pub fn bind(prefix: &str, address: Option<SocketAddr>, token: Option<&Token>) -> Option<Self> {
        let address = address?;
        let Some(token) = token else {
            settings::refuse(&format!(
                "{prefix}_ADMIN_TOKEN is missing: {prefix}_ADMIN_ADDRESS opens a door that it has to guard"
            ));
        };
        let listener = http::bind(&format!("{prefix}_ADMIN_ADDRESS"), address);
        Some(Self { listener, token: token.clone() })
    }

    /// Serves `routes` to whoever has the token, until `stop`.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(self, routes: Router, stop: CancellationToken) -> anyhow::Result<()> {
        let guarded = ServiceBuilder::new()
            .layer(CatchPanicLayer::new())
            .layer(HandleErrorLayer::new(overloaded_or_late))
            .layer(LoadShedLayer::new())
            .layer(GlobalConcurrencyLimitLayer::new(MAX_REQUESTS))
            .layer(TimeoutLayer::new(REQUEST_DEADLINE))
            .layer(DefaultBodyLimit::max(LARGEST_BODY));
        // The token is asked for before anything is read or counted, whatever the path.
        let app = routes
            .fallback(|| async { StatusCode::NOT_FOUND })
            .layer(guarded)
            .layer(middleware::from_fn_with_state(self.token, authorize))
            .layer(middleware::map_response(
                |response| async move { complete(response, Problem::from_status) },
            ));
        http::serve(self.listener, app, stop).await
    }
}

/// Lets through who has the token, and says in the log of whatever follows who that was, as far as it is known: one
/// token is shared, so the name is what the client says.
async fn authorize(State(token): State<Token>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    let shown = shown.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, shown)| shown);
    // In a time that does not tell how much of it was right. Its length shows, and is no secret.
    let known = shown.is_some_and(|shown| shown.as_bytes().ct_eq(token.0.as_bytes()).into());
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
    if !known {
        tracing::warn!(?peer, path = request.uri().path(), "an operator without the token was turned away");
        return Problem::unauthorized().into_response();
    }
    let name = request.headers().get("x-operator").and_then(|value| value.to_str().ok());
    let name: String = name.unwrap_or("unnamed").chars().take(100).collect();
    let span = info_span!("operator", who = name, peer = peer.map(tracing::field::display));
    next.run(request).instrument(span).await
}

/// `axum::extract::Query`, with problems for rejections.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Query::from_request_parts(parts, state).await;
        params.map(|Query(params)| Self(params)).map_err(|wrong| Problem::bad_request(wrong.body_text()))
    }
}

/// Which of the things that lie aside are meant: some by id, a period of time, or all.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, bound = "Id: DeserializeOwned")]
pub struct Choice<Id> {
    /// These.
    #[serde(default)]
    pub ids: Option<Vec<Id>>,
    /// From this moment on.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub from: Option<OffsetDateTime>,
    /// Before this moment.
    #[serde(default, with = "time::serde::rfc3339::option")]
    pub to: Option<OffsetDateTime>,
    /// All that wait. Has to be said: an empty body is more likely a mistake.
    #[serde(default)]
    pub all: bool,
    /// Where the last page ended.
    #[serde(default)]
    pub after: i64,
    /// Whatever the rules say.
    #[serde(default)]
    pub force: bool,
}

impl<Id> Choice<Id> {
    /// Exactly one way of choosing, and no more than `most` ids.
    ///
    /// # Errors
    /// Says what is right.
    pub fn check(&self, most: i64) -> Result<(), Problem> {
        let period = self.from.is_some() || self.to.is_some();
        let ways = usize::from(self.ids.is_some()) + usize::from(period) + usize::from(self.all);
        if ways != 1 {
            return Err(Problem::bad_request("one of ids, from with or without to, and all is needed"));
        }
        let count = self.ids.as_ref().map_or(0, Vec::len);
        if i64::try_from(count).is_ok_and(|count| count <= most) {
            return Ok(());
        }
        Err(Problem::bad_request(format!("at most {most} ids at a time")))
    }
}

/// Why an operator gave something up: for those who come later, so it has to say something.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Note(String);

impl Note {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Note {
    type Error = &'static str;

    fn try_from(note: String) -> Result<Self, Self::Error> {
        let sound = !note.trim().is_empty() && note.len() <= 1_000 && !note.contains('\0');
        if sound { Ok(Self(note)) } else { Err("a note of 1 to 1,000 bytes says why") }
    }
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

    #[test]
    fn a_choice_is_made_in_exactly_one_way() {
        let choice =
            |json: &str| serde_json::from_str::<Choice<i64>>(json).map(|choice| choice.check(2).is_ok());
        for good in [
            r#"{"ids": [1, 2]}"#,
            r#"{"all": true, "force": true}"#,
            r#"{"from": "2026-01-01T00:00:00Z"}"#,
            r#"{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00+01:00", "after": 7}"#,
        ] {
            assert!(choice(good).unwrap(), "{good}");
        }
        for bad in ["{}", r#"{"ids": [1], "all": true}"#, r#"{"ids": [1, 2, 3]}"#, r#"{"all": false}"#] {
            assert!(!choice(bad).unwrap(), "{bad}");
        }
        for nonsense in [r#"{"id": [1]}"#, r#"{"from": "yesterday"}"#] {
            assert!(choice(nonsense).is_err(), "{nonsense}");
        }
    }
}
