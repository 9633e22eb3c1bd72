//! Whose fault a failed statement is: each row of the table, as a server raises it.

use database::{Fault, Pool, PoolKind, SQLSTATES, is_locked, is_unavailable};
use sqlx::AssertSqlSafe;

/// Codes that no row names, and codes beside one that does: the class decides.
const OTHERS: [(&str, Fault); 10] = [
    ("22P05", Fault::Data),
    ("23505", Fault::Data),
    ("23514", Fault::Data),
    ("42501", Fault::Deployment),
    ("53100", Fault::Server),
    ("54000", Fault::Server),
    ("55000", Fault::Server),
    ("57P01", Fault::Server),
    ("P0001", Fault::Unknown),
    ("ZZ000", Fault::Unknown),
];

#[tokio::test]
async fn each_sqlstate_of_the_table_has_its_fault_when_a_server_raises_it() -> anyhow::Result<()> {
    let database = testbed::database().await?;
    let url = database.url("orders").parse().map_err(anyhow::Error::msg)?;
    let pool = Pool::new(&url, "test", 1, PoolKind::Transactions);
    for (state, fault) in SQLSTATES.into_iter().chain(OTHERS) {
        let raise = format!("do $$ begin raise exception using errcode = '{state:0<5}'; end $$");
        let error = sqlx::raw_sql(AssertSqlSafe(raise)).execute(&pool).await.unwrap_err();
        assert_eq!(Fault::of(&error), fault, "{state}: {error}");
        let may_pass = matches!(fault, Fault::Server | Fault::Deployment | Fault::TooSlow);
        assert_eq!(
            (is_unavailable(&error), is_locked(&error)),
            (may_pass, fault == Fault::Locked),
            "{state}"
        );
    }
    Ok(())
}
