//! The HTTP API, and what stands around its handlers.

use std::time::Duration;

use axum::{
    Router, error_handling::HandleErrorLayer, extract::DefaultBodyLimit, http::StatusCode, middleware,
};
use runtime::problem::{complete, overloaded_or_late};
use tower::{
    ServiceBuilder, limit::GlobalConcurrencyLimitLayer, load_shed::LoadShedLayer, timeout::TimeoutLayer,
};
use tower_http::{
    catch_panic::CatchPanicLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
};
use utoipa::{
    OpenApi,
    openapi::{
        Header, ObjectBuilder, RefOr, Required, Type,
        path::{Operation, ParameterBuilder, ParameterIn},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Shop, cancel_order, documents, place_order, problem::Problem, read_orders, request_context};

/// The largest body, in bytes. A hundred lines take about six thousand.
const LARGEST_BODY: usize = 64 * 1024;

/// How long a request may take. Its client has given up long before the database does.
const REQUEST_DEADLINE: Duration = Duration::from_secs(8);

/// What the document says before it comes to the routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Orders",
        description = "Places, shows and takes back orders. Amounts are integers in minor units (1250 is 12.50), times \
                       are RFC 3339 in UTC.\n\nEvery error is a problem document (RFC 9457): decide by its `type`, \
                       which does not change. Besides those that stand with each route, any other path is \
                       answered with 404 and `urn:shop:problem:not-found`, any other method with 405, `Allow` and \
                       `urn:shop:problem:method-not-allowed`. What becomes of an order is told by its events: see \
                       [asyncapi.json](/asyncapi.json).",
        license(name = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "orders", description = "The API."),
        (name = "observability", description = "Health and metrics. Every service has these."),
    ),
    components(schemas(Problem)),
)]
struct Document;

/// The routes of the API. `routes!` takes only what has a description, so that no route can be left out of the document.
fn routes() -> OpenApiRouter<Shop> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(place_order::place_order, read_orders::list_orders))
        .routes(routes!(read_orders::read_order))
        .routes(routes!(cancel_order::cancel_order))
}

/// What the service's routes promise, as OpenAPI 3.1.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = routes().into_openapi();
    let paths = document.paths.paths.values_mut();
    for operation in paths.flat_map(|path| [&mut path.get, &mut path.post]).flatten() {
        observe(operation);
    }
    document.merge(runtime::http::observability_document());
    document
}

/// The headers that the layers around all handlers read and write.
fn observe(operation: &mut Operation) {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let heard = [
        ("X-Request-Id", "What the client calls this request, for the log. Else one is made."),
        ("traceparent", "W3C Trace Context. Carried on into the event, and into the logs of all services."),
    ];
    let heard = heard.map(|(name, told)| {
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header);
        parameter.required(Required::False).description(Some(told)).schema(Some(text())).build().into()
    });
    operation.parameters.get_or_insert_default().extend(heard);
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer {
            let mut header = Header::new(text());
            header.description =
                Some("The request's own, or the one that was made. It is in the log.".into());
            answer.headers.insert("X-Request-Id".into(), header.into());
        }
    }
}

/// The routes of the order service, and the documents about them.
///
/// # Errors
/// When a document cannot be written as JSON, which none of ours can bring about.
pub fn router(shop: Shop) -> serde_json::Result<Router> {
    let guarded = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(HandleErrorLayer::new(overloaded_or_late))
        .layer(LoadShedLayer::new())
        .layer(GlobalConcurrencyLimitLayer::new(shop.max_requests.into()))
        .layer(TimeoutLayer::new(REQUEST_DEADLINE))
        .layer(DefaultBodyLimit::max(LARGEST_BODY));
    // A request gets its id and its trace before anything else, so that whatever becomes of it can be found in the
    // logs; errors of the layers above have become problems by then.
    let observed = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(middleware::from_fn(request_context::trace))
        .layer(middleware::map_response(|response| async move { complete(response, Problem::from_status) }));
    let router = Router::from(routes())
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(guarded)
        // Not behind the limits: they need nothing that could run out.
        .merge(documents::routes()?)
        .layer(observed)
        .with_state(shop);
    Ok(router)
}
