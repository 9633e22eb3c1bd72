//! `POST /refunds`: where money is given back, and never more than was taken.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    faults::{self, Operation},
    idempotency_key::{IdempotencyKey, replayed},
    problem::{Problem, ProblemJson},
};

/// The body of `POST /refunds`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    /// Its id: what the provider answered when the money was taken.
    charge: Uuid,
    /// In minor units.
    amount: i64,
}

/// A refund as the caller is told.
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

/// `POST /refunds`. A refund that is refused leaves nothing behind, and does not use up its key.
pub(crate) async fn refund(
    State(provider): State<Provider>,
    key: Option<IdempotencyKey>,
    ProblemJson(request): ProblemJson<RefundRequest>,
) -> Result<Response, Problem> {
    if request.amount < 1 {
        return Err(Problem::invalid("amount is 1 or more, in minor units"));
    }
    let struck = provider.faults.strike(Operation::Refund);
    faults::suffer(struck, give_back(&provider.pool, key.as_ref(), &request)).await
}

async fn give_back(
    pool: &PgPool,
    key: Option<&IdempotencyKey>,
    request: &RefundRequest,
) -> Result<Response, Problem> {
    let id = Uuid::now_v7();
    if let Some(created_at) = write(pool, id, key, request).await? {
        tracing::info!(%id, charge = %request.charge, amount = request.amount, "refund");
        return Ok(Refund::answer(id, request, created_at));
    }
    // A key that is known goes first: its refund may be the very one that left too little for this request.
    if let Some(key) = key
        && let Some(answer) = first_answer(pool, key, request).await?
    {
        return Ok(answer);
    }
    let captured = sqlx::query_scalar!(
        r#"select exists (select from charges where id = $1 and status = 'captured') as "captured!""#,
        request.charge,
    );
    Err(if captured.fetch_one(pool).await? { Problem::exceeds_charge() } else { Problem::no_such_charge() })
}

/// Writes the refund, its key and the charge's new sum, all or nothing. `None` when there is no such charge, when too
/// little is left of it, or when the key is known.
///
/// One statement, for the reason given at `charges::write`. The charge's row comes first, because only it can tell
/// whether there will be a refund at all: of two requests, the second waits for its lock, and then its condition is
/// tested again, on the row as the first has left it. A key that is known by then makes the whole statement fail, and
/// with it the change of the row.
async fn write(
    pool: &PgPool,
    id: Uuid,
    key: Option<&IdempotencyKey>,
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
        key.map(IdempotencyKey::as_str),
    )
    .fetch_optional(pool)
    .await;
    match written {
        Err(sqlx::Error::Database(refusal)) if refusal.constraint() == Some("known_keys_pkey") => Ok(None),
        written => Ok(written?),
    }
}

/// The first answer under this key, to the same request. `None`: the key is not known.
async fn first_answer(
    pool: &PgPool,
    key: &IdempotencyKey,
    asked: &RefundRequest,
) -> Result<Option<Response>, Problem> {
    let first = sqlx::query!(
        r#"select refunds.id as "id?", refunds.charge_id as "charge?", amount as "amount?",
                  created_at as "created_at?"
           from known_keys left join refunds on refunds.id = known_keys.refund_id
           where known_keys.key = $1"#,
        key.as_str(),
    )
    .fetch_optional(pool)
    .await?;
    let Some(first) = first else { return Ok(None) };
    // Without a refund it is a charge's key.
    let (Some(id), Some(created_at)) = (first.id, first.created_at) else {
        return Err(Problem::key_reused());
    };
    if (first.charge, first.amount) != (Some(asked.charge), Some(asked.amount)) {
        return Err(Problem::key_reused());
    }
    tracing::info!(%id, "refund asked for again");
    Ok(Some(replayed(Refund::answer(id, asked, created_at))))
}
