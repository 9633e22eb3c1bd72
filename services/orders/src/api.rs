//! The HTTP API: its routes, the layers around them, and its OpenAPI document.

use std::time::{Duration, Instant, SystemTime};

use axum::{
    Router,
    body::Bytes,
    extract::{MatchedPath, Request},
    handler::Handler,
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{Redirect, Response},
    routing::get,
};
use events::{
    TraceContext,
    spans::{Kind, Span},
};
use serde::Serialize;
use service::{
    admission::Admission,
    http::limited,
    problem::{Problem, complete},
};
use tower::ServiceBuilder;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer};
use tracing::{Instrument, info_span};
use utoipa::{
    OpenApi,
    openapi::{
        Header, ObjectBuilder, RefOr, Required, Type,
        path::{Operation, ParameterBuilder, ParameterIn},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::{OrderSettings, app_state::AppState, cancel_order, place_order, problems, read_orders};

/// The longest id that a client may give a request, in characters.
const MAX_REQUEST_ID: usize = 64;

/// How long a request may take. Clients give up long before the database does.
const REQUEST_DEADLINE: Duration = Duration::from_secs(8);

/// The head of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Orders",
        description = "Places, shows and cancels orders. Amounts are integers in minor units (1250 is 12.50), times are \
                       RFC 3339 in UTC.\n\nEvery error is a problem document (RFC 9457): programs decide by its \
                       `type`, which does not change. Besides the problems listed with each route, any other path is \
                       answered with 404 and `urn:shop:problem:not-found`, any other method with 405, `Allow` and \
                       `urn:shop:problem:method-not-allowed`, and what a web page of another site sends, except GET, with \
                       403 and `urn:shop:problem:foreign-page`. An order's events are described in \
                       [asyncapi.json](/asyncapi.json).",
        license(name = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "orders", description = "Orders."),
        (name = "observability", description = "Health and metrics, the same for every service."),
    ),
    components(schemas(Problem)),
)]
struct Document;

/// The routes of the API. `routes!` takes only described routes, so none can be missing from the document.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(place_order::place_order, read_orders::list_orders))
        .routes(routes!(read_orders::read_order))
        .routes(routes!(cancel_order::cancel_order))
        .routes(routes!(read_orders::list_products))
}

/// The OpenAPI 3.1 document of all routes.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = routes().into_openapi();
    let paths = document.paths.paths.values_mut();
    for operation in paths.flat_map(|path| [&mut path.get, &mut path.post]).flatten() {
        problems::describe(operation);
        add_common_headers(operation);
    }
    document.merge(service::http::observability_document());
    document
}

/// Adds the headers that the layers around all handlers read and write.
fn add_common_headers(operation: &mut Operation) {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let headers = [
        (
            "X-Request-Id",
            "The client's name for this request, for the log: 1 to 64 of A-Z a-z 0-9 . _ -. Else one is generated.",
        ),
        ("traceparent", "W3C Trace Context. Passed on into the event and the logs of all services."),
    ];
    let headers = headers.map(|(name, description)| {
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header);
        parameter.required(Required::False).description(Some(description)).schema(Some(text())).build().into()
    });
    operation.parameters.get_or_insert_default().extend(headers);
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer {
            let mut header = Header::new(text());
            header.description = Some("The request's own, or the generated one. It is in the log.".into());
            answer.headers.insert("X-Request-Id".into(), header.into());
        }
    }
}

/// The routes of the order service with their layers, and the API documents.
pub fn router(state: AppState, settings: &OrderSettings) -> serde_json::Result<Router> {
    // A request gets its id and its trace first, so that the log shows what became of it; errors of the layers above have
    // become problems by then.
    let observed = ServiceBuilder::new()
        .layer(middleware::map_request(|request| async move { drop_unfit_id(request) }))
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(middleware::from_fn(trace))
        .layer(middleware::map_response(|response| async move { complete(response, problems::from_status) }));
    // From the start: the objectives read rates, and would not see the first value of a series.
    for status in [StatusCode::CREATED, StatusCode::SERVICE_UNAVAILABLE] {
        drop(measured_requests("POST", "/orders", status));
    }
    let at_work = usize::try_from(settings.database_connections).unwrap_or(1);
    let admission = Admission::new(at_work, settings.max_requests.into()).waiting_for(settings.max_wait);
    let wake = state.wake.clone();
    let admission = admission.giving_way(move || wake.is_behind());
    let router = limited(routes().into(), admission, REQUEST_DEADLINE)
        // Outside the limits: they use nothing that could run out.
        .merge(document_routes(&openapi())?)
        .layer(observed)
        .with_state(state);
    Ok(router)
}

/// The page may load nothing from other hosts. Styles and images within the page are its own (`data:`).
const POLICY: (HeaderName, &str) = (
    header::CONTENT_SECURITY_POLICY,
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'",
);

/// Generated from the contracts and the topology by a test of `rabbitmq`, which also keeps it up to date.
const ASYNCAPI: &str = include_str!("../../../docs/asyncapi.json");

fn document_routes<S: Clone + Send + Sync + 'static>(
    openapi: &utoipa::openapi::OpenApi,
) -> serde_json::Result<Router<S>> {
    // By default the page asks a validator on the Internet about the document.
    let config =
        Config::from("/openapi.json").use_base_layout().validator_url("none").display_operation_id(true);
    let page = Router::from(SwaggerUi::new("/docs").config(config));
    let page = page.layer(middleware::map_response(|response: Response| async move { ([POLICY], response) }));
    Ok(Router::new()
        .route("/openapi.json", get(json(pretty(openapi)?)))
        .route("/asyncapi.json", get(json(ASYNCAPI.into())))
        .route("/", get(|| async { Redirect::to("/docs/") }))
        .merge(page))
}

/// A handler that answers with a constant document.
fn json<S: Send + Sync + 'static>(text: String) -> impl Handler<((),), S> {
    let body = Bytes::from(text);
    move || async move { ([(header::CONTENT_TYPE, "application/json")], body) }
}

/// Formats a document as it is served and committed.
pub fn pretty(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n")
}

/// Removes an id that is not fit for the log: it is in every line of its request, and a client could fill the log with it.
fn drop_unfit_id(mut request: Request) -> Request {
    const HEADER: &str = "x-request-id";
    let is_fit = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let id = request.headers().get(HEADER).map(HeaderValue::as_bytes);
    if id.is_some_and(|id| id.is_empty() || id.len() > MAX_REQUEST_ID || !id.iter().all(is_fit)) {
        request.headers_mut().remove(HEADER);
    }
    request
}

/// The values of the label `route`. All else is `other`: a client chooses methods and paths, and each value is a series.
const ROUTES: [&str; 5] =
    ["POST /orders", "GET /orders", "GET /orders/{id}", "POST /orders/{id}/cancellation", "GET /products"];

fn measured_requests(method: &str, route: &str, status: StatusCode) -> metrics::Histogram {
    let asked = format!("{method} {route}");
    let route = ROUTES.into_iter().find(|route| *route == asked).unwrap_or("other");
    metrics::histogram!("http_request_seconds", "route" => route, "status" => status.as_u16().to_string())
}

/// Adds a trace context to a request, the caller's or a new one, and logs how the request ended.
///
/// The handlers receive the trace context as an extension and write it into the outbox row; from there it reaches the
/// message's headers and the consumers' spans. One `trace_id` in the logs of three services is one order.
pub(crate) async fn trace(mut request: Request, next: Next) -> Response {
    let caller = request.headers().get("traceparent").and_then(|header| header.to_str().ok());
    let trace = TraceContext::child_of(caller);
    request.extensions_mut().insert(trace);
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok());
    let span = info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        request_id = id,
        trace_id = trace.trace_id(),
    );
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let method = request.method().to_string();
    let (began, started) = (Instant::now(), SystemTime::now());
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    measured_requests(&method, &route, status).record(seconds);
    events::spans::record(|| {
        let span = Span::ended(trace, Kind::Server, format!("{method} {route}"), started)
            .with("http.request.method", method)
            .with("http.route", route)
            .with("http.response.status_code", i64::from(status.as_u16()));
        if status.is_server_error() { span.failed(status.to_string()) } else { span }
    });
    // The code that answers a failure with a problem has logged the cause. A time-out has no other line.
    if status == StatusCode::GATEWAY_TIMEOUT {
        span.in_scope(|| tracing::warn!(seconds, "request timed out"));
    } else {
        span.in_scope(|| tracing::debug!(status = status.as_u16(), seconds, "request done"));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn each_route_of_the_api_has_its_label() {
        let document = serde_json::to_value(routes().into_openapi()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let described = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap();
            methods.keys().map(move |method| format!("{} {path}", method.to_uppercase()))
        });
        let mut described: Vec<_> = described.collect();
        let mut labels = ROUTES.to_vec();
        described.sort();
        labels.sort_unstable();
        assert_eq!(described, labels);
    }

    #[test]
    fn only_a_short_plain_request_id_is_kept() {
        let longest = "a".repeat(MAX_REQUEST_ID);
        for (id, is_kept) in [
            ("0190a1b2-0000.A_z", true),
            (longest.as_str(), true),
            (&format!("{longest}a"), false),
            ("", false),
            ("two words", false),
            ("a\"b", false),
        ] {
            let request = Request::builder().header("x-request-id", id).body(Body::empty()).unwrap();
            assert_eq!(drop_unfit_id(request).headers().contains_key("x-request-id"), is_kept, "{id:?}");
        }
    }
}
