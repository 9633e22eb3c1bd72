//! `POST /refunds`: refunds a charge, in part or in whole, and never more than was charged.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use database::Pool;
use serde::{Deserialize, Serialize};
use service::problem::{Problem, read_json};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    faults::{self, Operation},
    idempotency_key::{key_of, key_reused, mark_replayed},
    invalid_request,
};

/// The body of `POST /refunds`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    /// The charge's id, from the answer to `POST /charges`.
    charge: Uuid,
    /// In minor units.
    amount: i64,
}

/// A refund as the caller sees it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Refund {
    id: Uuid,
    status: &'static str,
    charge: Uuid,
    amount: i64,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl Refund {
    fn answer(id: Uuid, request: &RefundRequest, created_at: OffsetDateTime) -> Response {
        let RefundRequest { charge, amount } = *request;
        let refund = Self { id, status: "refunded", charge, amount, created_at };
        (StatusCode::CREATED, Json(refund)).into_response()
    }
}

/// `POST /refunds`. A refund that is refused writes nothing and does not use up its key.
pub(crate) async fn refund(State(provider): State<Provider>, request: Request) -> Result<Response, Problem> {
    let key = key_of(&request)?;
    let request: RefundRequest = read_json(request, invalid_request).await?;
    if request.amount < 1 {
        return Err(invalid_request("amount is 1 or more, in minor units"));
    }
    let fault = provider.faults.next_for(Operation::Refund);
    faults::inject(fault, refund_once(&provider.pool, key.as_deref(), &request)).await
}

async fn refund_once(pool: &Pool, key: Option<&str>, request: &RefundRequest) -> Result<Response, Problem> {
    let id = Uuid::now_v7();
    if let Some(created_at) = write(pool, id, key, request).await? {
        tracing::info!(%id, charge = %request.charge, amount = request.amount, "refund written");
        return Ok(Refund::answer(id, request, created_at));
    }
    // A known key is checked first: its refund may be the one that left too little for this request.
    if let Some(key) = key
        && let Some(answer) = first_answer(pool, key, request).await?
    {
        return Ok(answer);
    }
    let captured = sqlx::query_scalar!(
        r#"select exists (select from charges where id = $1 and status = 'captured') as "captured!""#,
        request.charge,
    );
    let captured = captured.fetch_one(pool).await?;
    Err(if captured {
        let title = "The refunds would exceed the charge";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refund-exceeds-charge", title)
    } else {
        Problem::new(StatusCode::NOT_FOUND, "no-such-charge", "No captured charge has this id")
    })
}

/// Writes the refund, its key and the charge's new sum: all or nothing. `None` when there is no such charge, when too
/// little is left of it, or when the key is known.
///
/// One statement, for the reason given at `charges::write`. The charge's row is updated first, because only it can tell
/// whether the refund is possible: of two requests, the second waits for the row's lock, and then PostgreSQL tests its
/// condition again, on the row as the first has left it. A key that is known by then makes the whole statement fail, and
/// with it the update of the row.
async fn write(
    pool: &Pool,
    id: Uuid,
    key: Option<&str>,
    request: &RefundRequest,
) -> Result<Option<OffsetDateTime>, Problem> {
    let written = sqlx::query_scalar!(
        "with taken as (
             update charges set refunded = refunded + $3
             where id = $2 and status = 'captured' and amount - refunded >= $3
             returning id
         ), refund as (
             insert into refunds (id, charge_id, amount)
             select $1, taken.id, $3 from taken
             returning id, created_at
         ), key as (
             insert into known_keys (key, refund_id)
             select $4, refund.id from refund where $4::text is not null
         )
         select created_at from refund",
        id,
        request.charge,
        request.amount,
        key,
    )
    .fetch_optional(pool)
    .await;
    match written {
        Err(sqlx::Error::Database(refusal)) if refusal.constraint() == Some("known_keys_pkey") => Ok(None),
        written => Ok(written?),
    }
}

/// Repeats the first answer under this key, if the request is the same. `None`: the key is not known.
async fn first_answer(
    pool: &Pool,
    key: &str,
    requested: &RefundRequest,
) -> Result<Option<Response>, Problem> {
    let first = sqlx::query!(
        r#"select refunds.id as "id?", refunds.charge_id as "charge?", amount as "amount?",
                  created_at as "created_at?"
           from known_keys left join refunds on refunds.id = known_keys.refund_id
           where known_keys.key = $1"#,
        key,
    )
    .fetch_optional(pool)
    .await?;
    let Some(first) = first else { return Ok(None) };
    // A key without a refund is a charge's key.
    let (Some(id), Some(created_at)) = (first.id, first.created_at) else {
        return Err(key_reused());
    };
    if (first.charge, first.amount) != (Some(requested.charge), Some(requested.amount)) {
        return Err(key_reused());
    }
    tracing::info!(%id, "idempotency key known; first answer repeated");
    Ok(Some(mark_replayed(Refund::answer(id, requested, created_at))))
}
