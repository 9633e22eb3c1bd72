//! The HTTP API: its routes, the layers around them, and its OpenAPI document.

use std::time::Duration;

use axum::{Router, middleware};
use service::{
    http::limited,
    problem::{Problem, complete},
};
use tower::ServiceBuilder;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use utoipa::{
    OpenApi,
    openapi::{
        Header, ObjectBuilder, RefOr, Required, Type,
        path::{Operation, ParameterBuilder, ParameterIn},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    AppState, api_docs, cancel_order, list_products, place_order, problems, read_orders, request_context,
};

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
        .routes(routes!(list_products::list_products))
}

/// The OpenAPI 3.1 document of all routes.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = routes().into_openapi();
    let paths = document.paths.paths.values_mut();
    for operation in paths.flat_map(|path| [&mut path.get, &mut path.post]).flatten() {
        add_common_headers(operation);
    }
    document.merge(service::http::observability_document());
    document
}

/// Adds the headers that the layers around all handlers read and write.
fn add_common_headers(operation: &mut Operation) {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let headers = [
        ("X-Request-Id", "The client's name for this request, for the log. Generated if absent."),
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
///
/// # Errors
/// When a document cannot be written as JSON, which does not happen with ours.
pub fn router(state: AppState) -> serde_json::Result<Router> {
    // A request gets its id and its trace first, so that the log shows what became of it; errors of the layers above have
    // become problems by then.
    let observed = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(middleware::from_fn(request_context::trace))
        .layer(middleware::map_response(|response| async move { complete(response, problems::from_status) }));
    let router = limited(routes().into(), state.max_requests.into(), REQUEST_DEADLINE)
        // Outside the limits: they use nothing that could run out.
        .merge(api_docs::routes(&openapi())?)
        .layer(observed)
        .with_state(state);
    Ok(router)
}
