//! The page, in the executable: no request leaves the machine.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

/// A file: its path, its type and its text.
pub(crate) const FILES: [(&str, &str, &str); 8] = [
    ("/board.css", CSS, include_str!("../../board/board.css")),
    ("/board.js", JAVASCRIPT, include_str!("../../board/board.js")),
    ("/flow.js", JAVASCRIPT, include_str!("../../board/flow.js")),
    ("/plots.js", JAVASCRIPT, include_str!("../../board/plots.js")),
    ("/order.js", JAVASCRIPT, include_str!("../../board/order.js")),
    ("/faults.js", JAVASCRIPT, include_str!("../../board/faults.js")),
    ("/uplot.js", JAVASCRIPT, include_str!("../../board/vendor/uPlot.iife.min.js")),
    ("/uplot.css", CSS, include_str!("../../board/vendor/uPlot.min.css")),
];

const PAGE: &str = include_str!("../../board/index.html");

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
