//! The sequence of each order's events while relays start and stop. The drills `partition-owner-killed` and `relay-frozen` kill and
//! freeze the instances that publish and apply them.

use anyhow::ensure;
use demo::lab::{CONDITION_DEADLINE, Setup, Stage, Tap};
use testbed::{Instances, eventually};

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
