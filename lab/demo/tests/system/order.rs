//! The sequence of each order's events, with any number of relays.

use std::time::Duration;

use anyhow::ensure;
use demo::lab::{CONDITION_DEADLINE, CrashFile, Setup, Stage, Tap, resume_process};
use testbed::{Instances, eventually};
use tokio::time::timeout;

/// Cancels each order as soon as it is accepted, until `orders` of them are cancelled.
async fn cancel_at_once(stage: &Stage, orders: usize) -> anyhow::Result<()> {
    for next in 0..orders {
        let id = eventually("the next order to be accepted", CONDITION_DEADLINE, async || {
            Ok(stage.acknowledged().get(next).copied())
        })
        .await?;
        // A busy service may refuse it (503).
        eventually("the cancellation to be accepted", CONDITION_DEADLINE, async || {
            Ok(Some(stage.cancel(id).await?))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn events_of_each_order_stay_in_order_while_order_services_start_and_stop() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 4, ..Instances::default() };
    let stage = Stage::ready(&vhost.url(), Setup { instances, ..Setup::default() }).await?;
    let mut tap = Tap::on(&vhost).await?;
    let others = ["orders-2", "orders-3", "orders-4"];
    for name in others {
        ensure!(stage.system.terminate(name).await? == Some(0), "{name} did not stop in order");
    }
    let load = stage.load_until_stopped(80);
    let scaling = async {
        eventually("some orders to be accepted", CONDITION_DEADLINE, async || {
            Ok((stage.accepted() > 150).then_some(()))
        })
        .await?;
        for name in others {
            stage.system.start_again(name).await?;
        }
        stage.system.wait_ready(CONDITION_DEADLINE).await?;
        let before = stage.accepted();
        eventually("more orders to be accepted", CONDITION_DEADLINE, async || {
            Ok((stage.accepted() > before + 150).then_some(()))
        })
        .await?;
        for name in others {
            ensure!(stage.system.terminate(name).await? == Some(0), "{name} did not stop in order");
        }
        anyhow::Ok(())
    };
    let (scaled, cancelled) = tokio::join!(scaling, cancel_at_once(&stage, 500));
    scaled?;
    cancelled?;
    load.stop().await?;
    let result = stage.held().await?;
    assert!(result.cancelled >= 500, "only {} were cancelled", result.cancelled);
    let published = tap.drain().await?;
    assert!(published.out_of_order.is_empty(), "{:?}", published.out_of_order);
    // Every relay that was stopped finished its step: it marked everything that it had published.
    assert_eq!((published.messages, published.copies), (result.events, 0));
    Ok(())
}

/// The reconciliation finds cancellations that inventory or billing applied before their orders.
#[tokio::test]
async fn events_of_each_order_are_applied_in_order_while_owners_of_partitions_are_killed()
-> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 2, inventory: 2, billing: 2 };
    let setup = Setup { instances, ..Setup::default() }.with_partitions(4);
    let stage = Stage::ready(&vhost.url(), setup).await?;
    let load = stage.load_until_stopped(60);
    let killing = async {
        for name in ["inventory", "billing", "orders-2", "inventory-2", "billing-2"] {
            let before = stage.accepted();
            eventually("more orders to be accepted", CONDITION_DEADLINE, async || {
                Ok((stage.accepted() > before + 60).then_some(()))
            })
            .await?;
            stage.system.kill(name).await?;
            stage.system.start_again(name).await?;
            stage.system.wait_ready(CONDITION_DEADLINE).await?;
        }
        anyhow::Ok(())
    };
    let (killed, cancelled) = tokio::join!(killing, cancel_at_once(&stage, 150));
    killed?;
    cancelled?;
    load.stop().await?;
    let result = stage.held().await?;
    assert!(result.cancelled >= 150, "only {} were cancelled", result.cancelled);
    Ok(())
}

#[tokio::test]
async fn relay_that_freezes_with_claimed_lanes_loses_them_and_does_no_harm_later() -> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let once = CrashFile::new();
    let instances = Instances { orders: 2, ..Instances::default() };
    let setup = Setup { instances, ..Setup::default().crashing_at("relay-claimed:freeze", once.path()) };
    let stage = Stage::ready(&vhost.url(), setup).await?;
    let mut tap = Tap::on(&vhost).await?;
    // The process that accepts the order wakes its own relay first, and may freeze before it has answered. The order is
    // committed by then in any case.
    let (_, frozen) =
        tokio::join!(timeout(Duration::from_secs(1), stage.order()), async { once.frozen().await });
    let frozen = frozen?;
    // PostgreSQL ends the frozen session after 30 s, and the other instance claims its lanes.
    eventually("the other relay to publish the event", CONDITION_DEADLINE, async || {
        let result = stage.reconcile().await?;
        Ok((result.orders == 1 && result.in_inventory == 1).then_some(()))
    })
    .await?;
    eventually("billing to apply it", CONDITION_DEADLINE, async || {
        Ok((stage.reconcile().await?.in_billing == 1).then_some(()))
    })
    .await?;
    resume_process(frozen)?;
    // The relay goes on in a session that has ended and, after this time, on a connection that the broker has closed.
    // If it had published a copy, the consumers would have dropped it.
    stage.system.wait_ready(CONDITION_DEADLINE).await?;
    stage.order().await?;
    let result = stage.held().await?;
    assert_eq!((result.orders, result.in_billing), (2, 2));
    let published = tap.drain().await?;
    assert!(published.out_of_order.is_empty(), "{:?}", published.out_of_order);
    Ok(())
}
