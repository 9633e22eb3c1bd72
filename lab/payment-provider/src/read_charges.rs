//! `GET /charges?reference=`: all charges of one reference, for people and for tests.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    problems::{ProviderProblem, bad_query},
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChargeQuery {
    reference: Uuid,
}

/// The charges of a reference, oldest first. At most a thousand: a caller that sends no keys may make any number of them.
#[derive(Debug, Serialize)]
pub(crate) struct ChargeList {
    charges: Vec<ChargeEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChargeEntry {
    id: Uuid,
    status: String,
    reference: Uuid,
    customer_id: Uuid,
    amount: i64,
    currency: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Added up from the refunds themselves, and not read from the sum that limits them.
    refunded: i64,
}

pub(crate) async fn read_charges(
    State(provider): State<Provider>,
    query: Result<Query<ChargeQuery>, QueryRejection>,
) -> Result<Json<ChargeList>, ProviderProblem> {
    let Query(ChargeQuery { reference }) = query.map_err(|invalid| bad_query(invalid.body_text()))?;
    let charges = sqlx::query_as!(
        ChargeEntry,
        r#"select id, status, reference, customer_id, amount, currency, created_at,
                  (select coalesce(sum(refunds.amount), 0)::bigint from refunds where charge_id = charges.id)
                      as "refunded!"
           from charges where reference = $1 order by created_at, id limit 1000"#,
        reference,
    )
    .fetch_all(&provider.pool)
    .await?;
    Ok(Json(ChargeList { charges }))
}
