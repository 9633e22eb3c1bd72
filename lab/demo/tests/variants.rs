//! Variants, and what they break that no experiment (`sabotages.rs`) looks for. The order service goes through the same fault,
//! which shows that the variant is the cause.

use anyhow::{Context as _, Result};
use demo::{
    RunningSystem,
    lab::{CONDITION_DEADLINE, Setup},
    reconciliation::Kind,
};
use flaws::Flaw;
use testbed::eventually;

async fn start(variant: Option<Flaw>) -> Result<RunningSystem> {
    RunningSystem::shared(Setup { variant: variant.map(Flaw::name), ..Setup::default() }).await
}

/// Places an order and waits until it is confirmed: what was published before has been applied by then.
async fn confirm_one_more(system: &RunningSystem) -> Result<()> {
    system.until_status(system.order().await?, "confirmed").await
}

#[tokio::test]
async fn publish_then_commit_charges_for_an_order_that_does_not_exist() -> Result<()> {
    for variant in [None, Some(Flaw::PublishThenCommit)] {
        let system = start(variant).await?;
        confirm_one_more(&system).await?;
        // From now on new orders are refused, and nothing else: every other change leaves this state.
        let mut owner = system.connect("orders").await?;
        sqlx::query("alter table orders add constraint closed check (status <> 'pending') not valid")
            .execute(&mut owner)
            .await?;
        let refused = system.order_once().await;
        assert!(refused.is_err(), "{variant:?} has accepted an order that it could not write");
        sqlx::query("alter table orders drop constraint closed").execute(&mut owner).await?;
        confirm_one_more(&system).await?;
        if variant.is_none() {
            system.held().await?;
            continue;
        }
        let result = eventually("the customer to be charged", CONDITION_DEADLINE, async || {
            let result = system.reconcile_acknowledged().await?;
            Ok((result.charges == result.orders + 1).then_some(result))
        })
        .await?;
        assert_eq!(result.acknowledged, result.orders);
        let has_one_phantom = |place: &str| {
            let mut phantoms = result.findings.iter().filter(|found| found.kind == Kind::Phantom);
            phantoms.any(|found| found.place == place && found.count == 1)
        };
        assert!(["inventory", "billing"].into_iter().all(has_one_phantom), "{:?}", result.findings);
    }
    Ok(())
}

/// A relay that publishes nothing would look like a slow one.
#[tokio::test]
async fn other_relays_publish_everything_while_nothing_fails() -> Result<()> {
    for variant in [
        Flaw::PollOneByOne,
        Flaw::RowLocks,
        Flaw::DeleteOncePublished,
        Flaw::TriggerNotify,
        Flaw::ListenAlone,
    ] {
        let system = start(Some(variant)).await?;
        confirm_one_more(&system).await.context(variant.name())?;
        system.orders(10).await?;
        let result = system.held().await.context(variant.name())?;
        assert_eq!(result.acknowledged, result.confirmed, "{}: {result:?}", variant.name());
        let (rows, pending): (i64, i64) = sqlx::query_as(
            "select count(*), count(*) filter (where published_at is null) from orders.outbox
             where event_type = 'OrderCreated'",
        )
        .fetch_one(&mut system.connect("orders").await?)
        .await?;
        let kept = if variant == Flaw::DeleteOncePublished { 0 } else { result.orders };
        assert_eq!((u64::try_from(rows)?, pending), (kept, 0), "{}", variant.name());
    }
    Ok(())
}
