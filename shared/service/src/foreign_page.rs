//! Closes every listener to web pages of other sites: what a browser sends for them must not change anything.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::problem::Problem;

/// Refuses a request that may change something, and that a page of another site has made. A browser sends such a request
/// without asking if it has no body, such as a cancellation; the page only cannot read the answer.
pub(crate) async fn refuse(request: Request, next: Next) -> Response {
    if request.method().is_safe() || !is_foreign(request.headers()) {
        return next.run(request).await;
    }
    Problem::new(StatusCode::FORBIDDEN, "foreign-page", "Refused for pages of other sites")
        .detail("a browser may change something only from a page of the same origin, over https or on this machine")
        .into_response()
}

/// Browsers send `Sec-Fetch-Site` to https and to localhost, and `Origin` with each request that is not safe. Clients that
/// are not browsers send neither.
///
/// Over http, a page's origin has to be an address or localhost: of a site that has made its own name resolve to our address
/// (DNS rebinding), origin and host are the same. Over https it would need our certificate.
fn is_foreign(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let own =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(scheme, from)| {
            let same = headers.get(header::HOST).is_some_and(|host| host == from);
            same && (scheme == "https" || is_local(from))
        });
    !own
}

fn is_local(authority: &str) -> bool {
    authority.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok()
    })
}
