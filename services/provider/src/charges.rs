//! `POST /charges`: where money is taken, once for each key, and each time without one.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use runtime::database::is_locked;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    faults::{self, Kind, Operation},
    idempotency_key::{IdempotencyKey, replayed},
    problem::{Problem, ProblemJson},
};

/// Customers whose id begins with these hexadecimal digits have no money: each charge of theirs is declined. Real
/// providers have magic card numbers for that, so that their customers can test what they do then.
pub const DECLINED_CUSTOMERS: &str = "dec11ed0";

/// The only currency that is taken.
const CURRENCY: &str = "EUR";

const CAPTURED: &str = "captured";
const DECLINED: &str = "declined";

/// The body of `POST /charges`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ChargeRequest {
    /// The caller's name for what is paid: the order.
    reference: Uuid,
    customer_id: Uuid,
    /// In minor units.
    amount: i64,
    currency: String,
}

impl ChargeRequest {
    /// Checks what the types cannot.
    fn check(&self) -> Result<(), Problem> {
        let wrong = match self {
            Self { reference, .. } if reference.is_nil() => "reference is the nil UUID",
            Self { customer_id, .. } if customer_id.is_nil() => "customerId is the nil UUID",
            Self { amount: ..=0, .. } => "amount is 1 or more, in minor units",
            Self { currency, .. } if currency != CURRENCY => "currency is EUR",
            _ => return Ok(()),
        };
        Err(Problem::invalid(wrong))
    }

    fn has_no_money(&self) -> bool {
        self.customer_id.simple().to_string().starts_with(DECLINED_CUSTOMERS)
    }
}

/// A charge as it stands in the ledger, and as the caller is told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Charge {
    id: Uuid,
    status: String,
    reference: Uuid,
    #[serde(skip)]
    customer_id: Uuid,
    amount: i64,
    currency: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl Charge {
    /// The same for the first request and for every repetition.
    fn answer(self) -> Response {
        if self.status == DECLINED {
            return Problem::declined().into_response();
        }
        (StatusCode::CREATED, Json(self)).into_response()
    }
}

/// `POST /charges`. A 201 means that the money is taken, a 402 that it is not and never will be under this key. After any
/// other answer, or none, only a repetition under the same key can tell.
pub(crate) async fn charge(
    State(provider): State<Provider>,
    key: Option<IdempotencyKey>,
    ProblemJson(request): ProblemJson<ChargeRequest>,
) -> Result<Response, Problem> {
    request.check()?;
    let struck = provider.faults.strike(Operation::Charge);
    let declined = request.has_no_money() || struck.is_some_and(|fault| fault.kind == Kind::Decline);
    let status = if declined { DECLINED } else { CAPTURED };
    faults::suffer(struck, take(&provider.pool, key.as_ref(), request, status)).await
}

async fn take(
    pool: &PgPool,
    key: Option<&IdempotencyKey>,
    request: ChargeRequest,
    status: &str,
) -> Result<Response, Problem> {
    let id = Uuid::now_v7();
    let Some(created_at) = write(pool, id, key, &request, status).await? else {
        return again(pool, key, &request).await;
    };
    let ChargeRequest { reference, customer_id, amount, currency } = request;
    tracing::info!(%id, %reference, amount, status, "charge");
    Ok(Charge { id, status: status.into(), reference, customer_id, amount, currency, created_at }.answer())
}

/// Writes the charge and its key, or neither. `None` when the key is known.
///
/// One statement, on purpose. This future is dropped when the caller hangs up, and a `BEGIN` that is dropped half way
/// leaves a pooled connection inside a transaction, into which other callers' charges would be written and lost.
///
/// The key comes first, and the charge hangs on its row: of fifty requests with one key, forty-nine wait there until the
/// first has committed, and then find that there is nothing to do.
async fn write(
    pool: &PgPool,
    id: Uuid,
    key: Option<&IdempotencyKey>,
    request: &ChargeRequest,
    status: &str,
) -> Result<Option<OffsetDateTime>, Problem> {
    sqlx::query_scalar!(
        "with key as (
             insert into known_keys (key, charge_id)
             select $7, $1 where $7::text is not null
             on conflict do nothing
             returning charge_id
         )
         insert into charges (id, reference, customer_id, amount, currency, status)
         select $1, $2, $3, $4, $5, $6
         where $7::text is null or exists (select from key)
         returning created_at",
        id,
        request.reference,
        request.customer_id,
        request.amount,
        request.currency,
        status,
        key.map(IdempotencyKey::as_str),
    )
    .fetch_optional(pool)
    .await
    .map_err(|error| if key.is_some() && is_locked(&error) { Problem::key_in_use() } else { error.into() })
}

/// The answer to a request whose key was known. A statement of its own: its snapshot has to be younger than the commit
/// that the insert may have waited for.
async fn again(
    pool: &PgPool,
    key: Option<&IdempotencyKey>,
    asked: &ChargeRequest,
) -> Result<Response, Problem> {
    let key = key.ok_or_else(|| Problem::internal("a charge without a key was not written"))?;
    let first = sqlx::query_as!(
        Charge,
        "select charges.id, status, reference, customer_id, amount, currency, created_at
         from known_keys join charges on charges.id = known_keys.charge_id
         where known_keys.key = $1",
        key.as_str(),
    )
    .fetch_optional(pool)
    .await?
    // Keys are never erased: if it is not a charge's, it is a refund's.
    .ok_or_else(Problem::key_reused)?;
    let is_same = (first.reference, first.customer_id, first.amount, &first.currency)
        == (asked.reference, asked.customer_id, asked.amount, &asked.currency);
    if !is_same {
        return Err(Problem::key_reused());
    }
    tracing::info!(id = %first.id, "charge asked for again");
    Ok(replayed(first.answer()))
}
