//! The query of the runbooks, for where the payment provider has no schema.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection as _, raw_sql};

use crate::records::{Records, about};

/// What is planted, and the finding.
const PLANTED: [(&str, &str); 8] = [
    ("update inventory.reservations set state = 'rejected' where order_id = ORDER", "confirmed without stock"),
    ("update billing.payments set amount = 1 where order_id = ORDER", "confirmed without its payment"),
    ("update billing.payments set state = 'declined', charge_id = null where order_id = ORDER", "confirmed without its payment"),
    ("ORDER_CANCELLED", "cancelled, stock held"),
    ("ORDER_CANCELLED", "cancelled, not refunded"),
    (
        "insert into inventory.reservations (id, order_id, event_id, state)
             values (gen_random_uuid(), ORDER, gen_random_uuid(), 'held')",
        "two reservations",
    ),
    (
        "insert into billing.payments (id, order_id, customer_id, amount, currency, event_id, traceparent, state)
             values (gen_random_uuid(), ORDER, ORDER, 2700, 'EUR', gen_random_uuid(), '', 'declined')",
        "two payments",
    ),
    (
        "delete from orders.answers where order_id = ORDER; delete from orders.order_lines where order_id = ORDER;
         delete from orders.orders where id = ORDER",
        "no such order",
    ),
];

#[tokio::test]
async fn the_query_of_the_runbook_finds_each_planted_mistake() -> Result<()> {
    let query = include_str!("../../../observe/reconcile.sql");
    let mut records = Records::new().await?;
    let (good, compensated, victim) =
        (records.order().await?, records.order().await?, records.order().await?);
    let always = about(compensated, "COMPENSATED; drop schema provider cascade");
    for (planted, finding) in [("", "")].iter().chain(&PLANTED) {
        let mut transaction = records.admin.begin().await?;
        let planted = about(victim, planted);
        raw_sql(AssertSqlSafe(format!("{always}; {planted}"))).execute(&mut *transaction).await?;
        let found: Vec<(String, uuid::Uuid)> = sqlx::query_as(query).fetch_all(&mut *transaction).await?;
        assert!(found.iter().all(|(_, order)| *order == victim), "{found:?}; good is {good}");
        assert_eq!(found.is_empty(), finding.is_empty(), "{found:?}");
        assert!(finding.is_empty() || found.iter().any(|(what, _)| what == finding), "{finding}: {found:?}");
        transaction.rollback().await?;
    }
    Ok(())
}
