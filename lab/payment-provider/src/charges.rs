//! `POST /charges`: charges a customer, once for each key, and each time without one.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use database::{Pool, is_locked};
use serde::{Deserialize, Serialize};
use service::problem::Problem;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    faults::{self, FaultKind, Operation},
    idempotency_key::{IdempotencyKey, mark_replayed},
    problems::{self, ProviderJson, ProviderProblem},
};

/// Customers whose id begins with these hexadecimal digits have no money: each of their charges is declined. Real providers
/// have magic card numbers for the same purpose, so that their customers can test a decline.
pub const DECLINED_CUSTOMERS: &str = "dec11ed0";

/// The only currency that is accepted.
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
    /// Checks what the types cannot express.
    fn check(&self) -> Result<(), Problem> {
        let rule = match self {
            Self { reference, .. } if reference.is_nil() => "reference is the nil UUID",
            Self { customer_id, .. } if customer_id.is_nil() => "customerId is the nil UUID",
            Self { amount: ..=0, .. } => "amount is 1 or more, in minor units",
            Self { currency, .. } if currency != CURRENCY => "currency is EUR",
            _ => return Ok(()),
        };
        Err(problems::invalid(rule))
    }

    fn customer_has_no_money(&self) -> bool {
        self.customer_id.simple().to_string().starts_with(DECLINED_CUSTOMERS)
    }
}

/// A charge as it is stored and as the caller sees it.
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
    /// The answer: the same for the first request and for every repetition.
    fn answer(self) -> Response {
        if self.status == DECLINED {
            return ProviderProblem::from(problems::declined()).into_response();
        }
        (StatusCode::CREATED, Json(self)).into_response()
    }
}

/// `POST /charges`. After a 201 the customer is charged; after a 402 the customer is not, and never will be under this key.
/// After any other answer, or none, only a repetition under the same key can tell.
pub(crate) async fn charge(
    State(provider): State<Provider>,
    key: Option<IdempotencyKey>,
    ProviderJson(request): ProviderJson<ChargeRequest>,
) -> Result<Response, ProviderProblem> {
    request.check()?;
    let fault = provider.faults.next_for(Operation::Charge);
    let declined =
        request.customer_has_no_money() || fault.is_some_and(|fault| fault.kind == FaultKind::Decline);
    let status = if declined { DECLINED } else { CAPTURED };
    faults::inject(fault, charge_once(&provider.pool, key.as_ref(), request, status)).await
}

async fn charge_once(
    pool: &Pool,
    key: Option<&IdempotencyKey>,
    request: ChargeRequest,
    status: &str,
) -> Result<Response, ProviderProblem> {
    let id = Uuid::now_v7();
    let Some(created_at) = write(pool, id, key, &request, status).await? else {
        return first_answer(pool, key, &request).await;
    };
    let ChargeRequest { reference, customer_id, amount, currency } = request;
    tracing::info!(%id, %reference, amount, status, "charge written");
    Ok(Charge { id, status: status.into(), reference, customer_id, amount, currency, created_at }.answer())
}

/// Writes the charge and its key, or neither. `None` when the key is known.
///
/// One statement, and no `BEGIN`: this future is dropped when the caller hangs up, and a `BEGIN` that is dropped half-way
/// leaves a pooled connection inside a transaction. Other callers' charges would be written into that, and lost.
///
/// The key is inserted first, and the charge depends on its row: of fifty requests with one key, forty-nine wait there
/// until the first has committed, and then insert nothing.
async fn write(
    pool: &Pool,
    id: Uuid,
    key: Option<&IdempotencyKey>,
    request: &ChargeRequest,
    status: &str,
) -> Result<Option<OffsetDateTime>, ProviderProblem> {
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
    .map_err(|error| {
        if key.is_some() && is_locked(&error) { problems::key_in_use().into() } else { error.into() }
    })
}

/// Repeats the first answer under a known key. A statement of its own: its snapshot has to be younger than the commit that
/// the insert may have waited for.
async fn first_answer(
    pool: &Pool,
    key: Option<&IdempotencyKey>,
    requested: &ChargeRequest,
) -> Result<Response, ProviderProblem> {
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
    // Keys are never erased: a key that is not a charge's is a refund's.
    .ok_or_else(problems::key_reused)?;
    let is_same = (first.reference, first.customer_id, first.amount, &first.currency)
        == (requested.reference, requested.customer_id, requested.amount, &requested.currency);
    if !is_same {
        return Err(problems::key_reused().into());
    }
    tracing::info!(id = %first.id, "idempotency key known; first answer repeated");
    Ok(mark_replayed(first.answer()))
}
