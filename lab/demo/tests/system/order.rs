//! The sequence of each order's events while relays start and stop. The drills `partition-owner-killed` and `relay-frozen` kill and
//! freeze the instances that publish and apply them.

use anyhow::ensure;
use demo::RunningSystem;
use demo::lab::{CONDITION_DEADLINE, Setup, Tap};

/// Cancels each order as soon as it is accepted, until `orders` of them are cancelled.
async fn cancel_at_once(system: &RunningSystem, orders: usize) -> anyhow::Result<()> {
    for next in 0..orders {
        system.until_accepted(next + 1).await?;
        system.cancel(system.acknowledged()[next]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn events_of_each_order_stay_in_order_while_order_services_start_and_stop() -> anyhow::Result<()> {
    let system = RunningSystem::shared(Setup::default().with_instances(4, 1, 1)).await?;
    let mut tap = Tap::on(system.broker_api()?).await?;
    let others = ["orders-2", "orders-3", "orders-4"];
    for name in others {
        ensure!(system.processes()?.terminate(name).await? == Some(0), "{name} did not stop in order");
    }
    let mut load = system.load_until_stopped(80);
    let scaling = async {
        system.until_accepted(150).await?;
        for name in others {
            system.processes()?.start_again(name).await?;
        }
        system.processes()?.wait_ready(CONDITION_DEADLINE).await?;
        system.until_accepted(system.acknowledged().len() + 150).await?;
        for name in others {
            ensure!(system.processes()?.terminate(name).await? == Some(0), "{name} did not stop in order");
        }
        anyhow::Ok(())
    };
    let (scaled, cancelled) = tokio::join!(scaling, cancel_at_once(&system, 500));
    scaled?;
    cancelled?;
    load.stop().await?;
    let result = system.held().await?;
    assert!(result.cancelled >= 500, "only {} were cancelled", result.cancelled);
    let published = tap.drain().await?;
    assert!(published.out_of_order.is_empty(), "{:?}", published.out_of_order);
    assert_eq!(published.messages - published.copies, result.events);
    // Every relay that was stopped finished its step: it marked everything that it had published. On a machine on which a confirm
    // comes too late, the relay logs that, and publishes once more.
    let processes = system.processes()?;
    let logs: String = processes.names().filter_map(|name| processes.log(name).ok()).collect();
    let failed = ["relay step failed", "not connected to the broker"].iter().any(|text| logs.contains(text));
    assert!(published.copies == 0 || failed, "{} copies, and no relay has failed", published.copies);
    Ok(())
}
