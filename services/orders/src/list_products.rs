//! `GET /products`: what can be ordered, and for which price.

use axum::{Json, extract::State};
use serde::Serialize;
use service::problem::Problem;
use utoipa::ToSchema;

use crate::{AppState, order_view::Money, problem_responses};

/// The catalogue.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProductList {
    products: Vec<Product>,
}

/// A product that can be ordered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Product {
    /// Stock keeping unit: what an order's line names.
    sku: String,
    name: String,
    /// The price of one piece.
    unit_price: Money,
}

/// Lists all products. Whether there is stock is not known here: inventory decides, for each order.
#[utoipa::path(
    get, path = "/products", tag = "orders", operation_id = "listProducts",
    summary = "Lists what can be ordered",
    description = "All products by their SKU, in one answer. Whether there is enough stock is decided for each order.",
    responses((status = 200, description = "The catalogue.", body = ProductList), problem_responses::ListProducts),
)]
pub(crate) async fn list_products(State(state): State<AppState>) -> Result<Json<ProductList>, Problem> {
    let rows = sqlx::query!("select sku, name, unit_price, currency from products order by sku")
        .fetch_all(&state.pool)
        .await?;
    let products = rows.into_iter().map(|row| Product {
        sku: row.sku,
        name: row.name,
        unit_price: Money { amount: row.unit_price, currency: row.currency },
    });
    Ok(Json(ProductList { products: products.collect() }))
}
