//! `/openapi.json`, `/asyncapi.json` and `/docs`: the documents of the API and of the events, and a page that shows them.
//!
//! All of it is in the binary: reading it needs no network and no database. `docs/` holds both documents; tests compare
//! them with the code.

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
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::Config;

/// The page may load nothing from other hosts. Styles and images within the page are its own (`data:`).
const POLICY: (HeaderName, &str) = (
    header::CONTENT_SECURITY_POLICY,
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
);

/// Generated from the contracts and the topology by a test of `broker`, which also keeps it up to date.
const ASYNCAPI: &str = include_str!("../../../docs/asyncapi.json");

pub(crate) fn routes<S: Clone + Send + Sync + 'static>(openapi: &OpenApi) -> serde_json::Result<Router<S>> {
    // By default the page asks a validator on the Internet about the document.
    let page = Arc::new(
        Config::from("/openapi.json").use_base_layout().validator_url("none").display_operation_id(true),
    );
    Ok(Router::new()
        .route("/openapi.json", get(json(pretty(openapi)?)))
        .route("/asyncapi.json", get(json(ASYNCAPI.into())))
        .route("/", get(to_page))
        // The page requests its assets relative to its own path.
        .route("/docs", get(to_page))
        .route(
            "/docs/",
            get({
                let page = page.clone();
                move || async move { asset("", page) }
            }),
        )
        .route("/docs/{*asset}", get(move |Path(name): Path<String>| async move { asset(&name, page) })))
}

async fn to_page() -> Redirect {
    Redirect::to("/docs/")
}

/// A handler that answers with a constant document.
fn json<S: Send + Sync + 'static>(text: String) -> impl Handler<((),), S> {
    let body = Bytes::from(text);
    move || async move { ([(header::CONTENT_TYPE, "application/json")], body) }
}

/// Formats a document as it is served and committed.
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
            tracing::error!(%error, "failed to render the API page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
