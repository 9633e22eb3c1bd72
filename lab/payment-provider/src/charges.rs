//! `POST /charges`: charges a customer, once for each key, and each time without one. `GET /charges?reference=` lists them.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use database::Pool;
use serde::{Deserialize, Serialize};
use service::{
    Params,
    problem::{Problem, read_json},
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Provider,
    faults::{self, FaultKind, Operation},
    idempotency_key::{key_of, key_reused, mark_replayed},
    invalid_request,
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
        if self.amount < 1 || self.currency != CURRENCY {
            return Err(invalid_request("amount is 1 or more, in minor units of EUR"));
        }
        Ok(())
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
            let problem = Problem::new(StatusCode::PAYMENT_REQUIRED, "declined", "Declined");
            return problem.detail("the customer has no money; nothing was charged").into_response();
        }
        (StatusCode::CREATED, Json(self)).into_response()
    }
}

/// `POST /charges`. After a 201 the customer is charged; after a 402 the customer is not, and never will be under this key.
/// After any other answer, or none, only a repetition under the same key can tell.
pub(crate) async fn charge(State(provider): State<Provider>, request: Request) -> Result<Response, Problem> {
    let key = key_of(&request)?;
    let request: ChargeRequest = read_json(request, invalid_request).await?;
    request.check()?;
    let fault = provider.faults.next_for(Operation::Charge);
    let declined =
        request.customer_has_no_money() || fault.is_some_and(|fault| fault.kind == FaultKind::Decline);
    let status = if declined { DECLINED } else { CAPTURED };
    faults::inject(fault, charge_once(&provider.pool, key.as_deref(), request, status)).await
}

async fn charge_once(
    pool: &Pool,
    key: Option<&str>,
    request: ChargeRequest,
    status: &str,
) -> Result<Response, Problem> {
    let id = Uuid::now_v7();
    let created_at = match (write(pool, id, key, &request, status).await?, key) {
        (Some(created_at), _) => created_at,
        (None, Some(key)) => return first_answer(pool, key, &request).await,
        (None, None) => return Err(sqlx::Error::RowNotFound.into()),
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
/// until the first has committed, and then insert nothing. One that waits for too long is answered with 409.
async fn write(
    pool: &Pool,
    id: Uuid,
    key: Option<&str>,
    request: &ChargeRequest,
    status: &str,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
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
        key,
    )
    .fetch_optional(pool)
    .await
}

/// Repeats the first answer under a known key. A separate statement: its snapshot must be younger than the commit that the
/// insert may have waited for.
async fn first_answer(pool: &Pool, key: &str, requested: &ChargeRequest) -> Result<Response, Problem> {
    let first = sqlx::query_as!(
        Charge,
        "select charges.id, status, reference, customer_id, amount, currency, created_at
         from known_keys join charges on charges.id = known_keys.charge_id
         where known_keys.key = $1",
        key,
    )
    .fetch_optional(pool)
    .await?
    // Keys are never erased: a key that is not a charge's is a refund's.
    .ok_or_else(key_reused)?;
    let is_same = (first.reference, first.customer_id, first.amount, &first.currency)
        == (requested.reference, requested.customer_id, requested.amount, &requested.currency);
    if !is_same {
        return Err(key_reused());
    }
    tracing::info!(id = %first.id, "idempotency key known; first answer repeated");
    Ok(mark_replayed(first.answer()))
}

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

/// `GET /charges?reference=`: all charges of one reference, for people and for tests.
pub(crate) async fn read_charges(
    State(provider): State<Provider>,
    Params(ChargeQuery { reference }): Params<ChargeQuery>,
) -> Result<Json<ChargeList>, Problem> {
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
