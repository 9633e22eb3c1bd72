//! Who may do what. The board listens on loopback without a login, so a page from elsewhere must not be able to use it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

/// Nothing from anywhere else, and nothing written into the page.
const POLICY: &str =
    "default-src 'self'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The header with the page's token. A page from elsewhere cannot send it without being allowed to, and does not know it.
const TOKEN: &str = "x-board-token";

/// What a request must know.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) port: u16,
    pub(crate) token: Arc<str>,
}

/// Checks every request: a foreign name in `Host` is a page that has pointed its own name at this machine (DNS rebinding).
/// What a page from elsewhere requests is refused, except the page itself, which a link may lead to: reading can take a place
/// in `/stream`, or start processes. A change also needs the page's own origin, its token, and a JSON body.
pub(crate) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    if let Err(refusal) = check(&guard, request.method(), request.uri().path(), request.headers()) {
        return refusal.into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn check(
    guard: &Guard,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), (StatusCode, &'static str)> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !is_own(header(HOST.as_str()), guard.port) {
        return Err((StatusCode::MISDIRECTED_REQUEST, "this is not the board's host name"));
    }
    // Every browser sends it, and no page can change it. Other programs send none.
    let is_foreign = !["", "same-origin", "none"].contains(&header("sec-fetch-site"));
    if is_foreign && path != "/" {
        return Err((StatusCode::FORBIDDEN, "only the board's own page may do this"));
    }
    if method == Method::GET {
        return Ok(());
    }
    if !is_own(header(ORIGIN.as_str()).trim_start_matches("http://"), guard.port) {
        return Err((StatusCode::FORBIDDEN, "only the board's own page may do this"));
    }
    if header(TOKEN) != guard.token.as_ref() {
        return Err((StatusCode::FORBIDDEN, "the page is older than the board: load it again"));
    }
    if !header(CONTENT_TYPE.as_str()).starts_with("application/json") {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "a JSON body was expected"));
    }
    Ok(())
}

fn is_own(host: &str, port: u16) -> bool {
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| host == format!("{name}:{port}"))
}
