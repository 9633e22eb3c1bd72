//! The order of one order's events, with any number of relays.

use std::{process::Command, time::Duration};

use anyhow::ensure;
use demo::lab::{PATIENCE, Setup, Stage, Tap};
use testbed::{Instances, eventually};

/// Cancels every order that is accepted, as soon as it is, until `orders` of them are cancelled.
async fn cancel_as_they_come(stage: &Stage, orders: usize) -> anyhow::Result<()> {
    for next in 0..orders {
        let id = eventually("the next order to be accepted", PATIENCE, async || {
            Ok(stage.acknowledged().get(next).copied())
        })
        .await?;
        stage.cancel(id).await?;
    }
    Ok(())
}

#[tokio::test]
async fn from_one_order_service_to_four_and_back_under_load_no_order_s_events_change_places()
-> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let instances = Instances { orders: 4, ..Instances::default() };
    let stage = Stage::ready(&vhost.url(), Setup { instances, ..Setup::default() }).await?;
    let mut tap = Tap::on(&vhost).await?;
    let others = ["orders-2", "orders-3", "orders-4"];
    for name in others {
        ensure!(stage.system.terminate(name).await? == Some(0), "{name} did not stop in order");
    }
    let load = stage.load(80, Duration::from_secs(9));
    let scaling =
        async {
            eventually("some orders to be through", PATIENCE, async || {
                Ok((stage.accepted() > 150).then_some(()))
            })
            .await?;
            for name in others {
                stage.system.start_again(name).await?;
            }
            stage.system.wait_ready(PATIENCE).await?;
            eventually("more orders to be through", PATIENCE, async || {
                Ok((stage.accepted() > 400).then_some(()))
            })
            .await?;
            for name in others {
                ensure!(stage.system.terminate(name).await? == Some(0), "{name} did not stop in order");
            }
            anyhow::Ok(())
        };
    let (scaled, cancelled) = tokio::join!(scaling, cancel_as_they_come(&stage, 500));
    scaled?;
    cancelled?;
    load.await??;
    let audit = stage.held().await?;
    assert!(audit.cancelled >= 500, "only {} were cancelled", audit.cancelled);
    let published = tap.drain().await?;
    assert!(published.out_of_order.is_empty(), "{:?}", published.out_of_order);
    // Every relay that was stopped finished its step: nothing was published and not marked.
    assert_eq!((published.messages, published.copies), (audit.events, 0));
    Ok(())
}

#[tokio::test]
async fn a_relay_that_freezes_with_lanes_in_hand_is_cut_off_and_does_no_harm_when_it_wakes()
-> anyhow::Result<()> {
    let vhost = testbed::vhost().await?;
    let once = std::env::temp_dir().join(format!("freeze-{}", uuid::Uuid::new_v4()));
    let instances = Instances { orders: 2, ..Instances::default() };
    let setup = Setup { instances, ..Setup::default().striking("relay-claimed:freeze", &once) };
    let stage = Stage::ready(&vhost.url(), setup).await?;
    let mut tap = Tap::on(&vhost).await?;
    // The process that accepts the order wakes its own relay first, and freezes, perhaps before it has answered.
    let _ = tokio::time::timeout(Duration::from_secs(1), stage.order()).await;
    let frozen =
        eventually("a relay to freeze", PATIENCE, async || Ok(std::fs::read_to_string(&once)?.parse().ok()))
            .await?;
    let frozen: u32 = frozen;
    // PostgreSQL ends the frozen session after 30 s, and the other instance has its lanes.
    eventually("the other relay to publish it", PATIENCE, async || {
        let audit = stage.audit().await?;
        Ok((audit.orders == 1 && audit.in_inventory == 1).then_some(()))
    })
    .await?;
    eventually("its effects", PATIENCE, async || Ok((stage.audit().await?.in_billing == 1).then_some(())))
        .await?;
    assert!(Command::new("kill").args(["-CONT", &frozen.to_string()]).status()?.success());
    // It goes on where it was, with a session that has ended and, after so long, a connection that the broker has closed.
    // Had it got a copy out, consumers would drop it.
    stage.system.wait_ready(PATIENCE).await?;
    stage.order().await?;
    let audit = stage.held().await?;
    assert_eq!((audit.orders, audit.in_billing), (2, 2));
    let published = tap.drain().await?;
    assert!(published.out_of_order.is_empty(), "{:?}", published.out_of_order);
    std::fs::remove_file(once)?;
    Ok(())
}
