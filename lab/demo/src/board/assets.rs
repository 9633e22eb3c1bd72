//! The page, in the executable: no request leaves the machine.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A module of the page: its name, and its text. Each comes after those that it imports.
pub(crate) const MODULES: [(&str, &str); 12] = [
    ("/page.js", include_str!("../../board/page.js")),
    ("/reconciliation.js", include_str!("../../board/reconciliation.js")),
    ("/flow.js", include_str!("../../board/flow.js")),
    ("/backlog.js", include_str!("../../board/backlog.js")),
    ("/strip.js", include_str!("../../board/strip.js")),
    ("/order.js", include_str!("../../board/order.js")),
    ("/faults.js", include_str!("../../board/faults.js")),
    ("/twin.js", include_str!("../../board/twin.js")),
    ("/steps.js", include_str!("../../board/steps.js")),
    ("/failed.js", include_str!("../../board/failed.js")),
    ("/sections.js", include_str!("../../board/sections.js")),
    ("/board.js", include_str!("../../board/board.js")),
];

/// The module that a recording starts, in the place of `board.js`.
pub(crate) const REPLAY: &str = include_str!("../../board/replay.js");

pub(crate) const STYLE: &str = include_str!("../../board/board.css");

pub(crate) const PAGE: &str = include_str!("../../board/index.html");

/// Every file but the page: its path, its type and its text.
pub(crate) fn files() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let modules = MODULES.into_iter().map(|(path, text)| (path, JAVASCRIPT, text));
    modules.chain([("/board.css", "text/css; charset=utf-8", STYLE)])
}

/// The page, with the token that its changes need.
pub(crate) fn page(token: &str) -> Response {
    serve("text/html; charset=utf-8", PAGE.replace("TOKEN", token))
}

pub(crate) fn file(content_type: &'static str, text: &'static str) -> Response {
    serve(content_type, text.to_owned())
}

fn serve(content_type: &'static str, text: String) -> Response {
    // After a new build the old page would talk to a new board.
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], text).into_response()
}
