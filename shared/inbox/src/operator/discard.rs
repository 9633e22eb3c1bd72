use serde::Serialize;
use sqlx::PgPool;

/// What came of giving letters up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Discard {
    /// These are discarded now. Their bytes are kept.
    pub discarded: Vec<i64>,
    /// These were settled before, one way or the other, or do not exist.
    pub untouched: Vec<i64>,
}

/// Gives letters up: nothing is applied, and they no longer wait for anybody. `note` says why.
///
/// # Errors
/// When the database does not answer.
pub async fn discard(pool: &PgPool, ids: &[i64], note: &str) -> Result<Discard, sqlx::Error> {
    let discarded = sqlx::query_scalar!(
        "update dead_letters set resolved_at = clock_timestamp(), resolution = 'discarded', note = $2
         where id = any($1) and resolved_at is null
         returning id",
        ids,
        note,
    )
    .fetch_all(pool)
    .await?;
    let untouched = ids.iter().copied().filter(|id| !discarded.contains(id)).collect();
    Ok(Discard { discarded, untouched })
}
