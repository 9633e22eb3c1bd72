//! `GET /charges?reference=`: what happened under one reference, for people and for tests.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Provider, problem::Problem};

/// Which charges are asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    reference: Uuid,
}

/// All charges of a reference, oldest first; the first thousand, should a caller without keys have gone mad.
#[derive(Debug, Serialize)]
pub(crate) struct ChargeList {
    charges: Vec<Entry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    id: Uuid,
    status: String,
    reference: Uuid,
    customer_id: Uuid,
    amount: i64,
    currency: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Added up from the refunds themselves, and not read from the sum that guards them.
    refunded: i64,
}

pub(crate) async fn read_charges(
    State(provider): State<Provider>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<ChargeList>, Problem> {
    let Query(Wanted { reference }) = wanted.map_err(|wrong| Problem::bad_query(wrong.body_text()))?;
    let charges = sqlx::query_as!(
        Entry,
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
