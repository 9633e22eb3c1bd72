//! What this service and its events promise: two documents for programs, and a page for people.
//!
//! All of it is in the binary, rendered once, at the start: reading it takes no network and no database. `docs/` holds a
//! copy of both documents, and a test keeps them equal.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    handler::Handler,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use serde::Serialize;
use utoipa_swagger_ui::Config;

use crate::api;

/// The page shows one document, may load nothing from elsewhere, and asks no validator on the Internet about it, which is
/// what it does by default. Styles and images within the page are its own (`data:`).
const POLICY: (HeaderName, &str) = (
    header::CONTENT_SECURITY_POLICY,
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
);

/// `/openapi.json`, `/asyncapi.json` and `/docs`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> serde_json::Result<Router<S>> {
    let page = Arc::new(
        Config::from("/openapi.json").use_base_layout().validator_url("none").display_operation_id(true),
    );
    Ok(Router::new()
        .route("/openapi.json", get(json(pretty(&api::openapi())?)))
        .route("/asyncapi.json", get(json(pretty(&broker::asyncapi::document()?)?)))
        // The page names its assets relative to itself.
        .route("/docs", get(|| async { Redirect::to("/docs/") }))
        .route(
            "/docs/",
            get({
                let page = page.clone();
                move || async move { asset("", page) }
            }),
        )
        .route("/docs/{*asset}", get(move |Path(name): Path<String>| async move { asset(&name, page) })))
}

/// A handler that always says the same.
fn json<S: Send + Sync + 'static>(text: String) -> impl Handler<((),), S> {
    let body = Bytes::from(text);
    move || async move { ([(header::CONTENT_TYPE, "application/json")], body) }
}

/// As it is served and committed: for people too, and with a last line that ends.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn pretty(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n")
}

fn asset(name: &str, page: Arc<Config<'static>>) -> Response {
    match utoipa_swagger_ui::serve(name, page) {
        Ok(Some(file)) => {
            ([(header::CONTENT_TYPE, file.content_type.as_str()), POLICY], file.bytes).into_response()
        }
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::error!(%error, "the page about the API could not be made");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
