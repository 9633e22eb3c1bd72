use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use messaging::{DeadLetter, DeadLetterStore, Failure};
use metrics_exporter_prometheus::PrometheusBuilder;
use rabbitmq::{ConnectionStatus, DeadLetterCollector, topology};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    scripted_store::ScriptedStore,
    support::{DEADLINE, Running, Vhost, order_created},
};

const QUEUE: &str = topology::INVENTORY;

fn collect(vhost: &Vhost, store: impl DeadLetterStore) -> Running {
    let collector = DeadLetterCollector::new(vhost.endpoint(), QUEUE, ConnectionStatus::new("test"));
    Running::start(|stop| collector.run(store, stop))
}

/// Stops the collector and checks that it has acknowledged every dead letter.
async fn stop_and_check_acknowledged(collector: Running, vhost: &Vhost) -> anyhow::Result<()> {
    collector.stop().await?;
    let left = vhost.count_without_consumers(&topology::dead_letter_queue(QUEUE)).await?;
    anyhow::ensure!(left == 0, "{left} dead letters were saved and not acknowledged");
    Ok(())
}

#[tokio::test]
async fn message_dead_lettered_by_the_delivery_limit_is_saved_with_that_reason() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let event = order_created();
    vhost.put_event(QUEUE, &event).await?;
    let store = ScriptedStore::that_saves();
    let collector = collect(&vhost, store.clone());
    // A consumer that returns the message to the queue, again and again, until the broker dead-letters it.
    vhost.channel.basic_qos(1, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut deliveries =
        vhost.channel.basic_consume(QUEUE.into(), "".into(), options, Default::default()).await?;
    tokio::spawn(async move {
        while let Some(Ok(delivery)) = deliveries.next().await {
            let _ = delivery.reject(BasicRejectOptions { requeue: true }).await;
        }
    });
    let letters = store.saved(1).await?;
    assert_eq!(letters[0].reason, "delivery-limit");
    assert_eq!(letters[0].message_id, Some(event.event_id.to_string()));
    assert_eq!(letters[0].body, event.payload.as_bytes());
    assert!(letters[0].arrival.is_some(), "{letters:?}");
    stop_and_check_acknowledged(collector, &vhost).await
}

#[tokio::test]
async fn while_the_store_is_unavailable_dead_letters_wait_in_the_queue_in_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for number in 0..5 {
        vhost.put(&dead, &format!("letter-{number}"), b"x").await?;
    }
    let store = ScriptedStore::new(|_, earlier_calls| {
        let unavailable = || Failure::Temporary("the database is unavailable".into());
        if earlier_calls < 6 { Err(unavailable()) } else { Ok(true) }
    });
    let status = ConnectionStatus::new("test");
    let collector = DeadLetterCollector::new(vhost.endpoint(), QUEUE, status.clone());
    let running = store.clone();
    let collector = Running::start(|stop| collector.run(running, stop));
    eventually("health to say that the store is unavailable", DEADLINE, async || {
        Ok(status.state().is_err_and(|reason| reason.contains("store is unavailable")).then_some(()))
    })
    .await?;
    let letters = store.saved(5).await?;
    eventually("health to be good", DEADLINE, async || Ok(status.state().is_ok().then_some(()))).await?;
    let ids: Vec<_> = letters.iter().map(|letter| letter.message_id.clone().unwrap_or_default()).collect();
    assert_eq!(ids, ["letter-0", "letter-1", "letter-2", "letter-3", "letter-4"]);
    assert_eq!(
        (letters[0].reason.as_str(), &letters[0].arrival),
        ("unknown", &None),
        "it was published to the dead-letter queue by hand"
    );
    stop_and_check_acknowledged(collector, &vhost).await
}

#[tokio::test]
async fn dead_letter_that_cannot_be_saved_stays_in_its_queue_and_others_go_on() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for id in ["bad", "good"] {
        vhost.put(&dead, id, b"x").await?;
    }
    let store = ScriptedStore::new(|letter, _| match letter.message_id.as_deref() {
        Some("bad") => Err(Failure::Permanent("the test refuses it".into())),
        _ => Ok(true),
    });
    let collector = collect(&vhost, store.clone());
    assert_eq!(store.saved(1).await?[0].message_id.as_deref(), Some("good"));
    collector.stop().await?;
    // The next collector receives it, however often it was delivered.
    let store = ScriptedStore::that_saves();
    let collector = collect(&vhost, store.clone());
    assert_eq!(store.saved(1).await?[0].message_id.as_deref(), Some("bad"));
    stop_and_check_acknowledged(collector, &vhost).await
}

#[tokio::test]
async fn dead_letter_saved_but_not_acknowledged_is_delivered_again_with_the_same_id() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    vhost.put(QUEUE, "poison", b"x").await?;
    vhost.reject(QUEUE).await?;

    /// Saves a dead letter and never returns, so that the collector does not acknowledge it.
    struct NeverReturns(ScriptedStore);
    impl DeadLetterStore for NeverReturns {
        async fn save(&self, letter: &DeadLetter) -> Result<(), Failure> {
            self.0.save(letter).await?;
            std::future::pending().await
        }

        async fn save_behind(&self, _: &DeadLetter) -> Result<bool, Failure> {
            panic!("a collector knows no order")
        }

        async fn begin_attempt(&self, _: &str, _: Uuid) -> Result<u32, Failure> {
            panic!("a collector makes no attempts")
        }

        async fn end_attempts(&self, _: &str, _: Uuid) -> Result<(), Failure> {
            panic!("a collector makes no attempts")
        }
    }
    let first = ScriptedStore::that_saves();
    let collector = collect(&vhost, NeverReturns(first.clone()));
    let before = first.saved(1).await?;
    collector.kill();
    let second = ScriptedStore::that_saves();
    let collector = collect(&vhost, second.clone());
    let after = second.saved(1).await?;
    let identity =
        |letter: &DeadLetter| (letter.arrival.clone(), letter.message_id.clone(), letter.body.clone());
    assert!(before[0].arrival.is_some());
    assert_eq!(identity(&before[0]), identity(&after[0]), "the table recognises it by these");
    stop_and_check_acknowledged(collector, &vhost).await
}

/// More than the collector's prefetch: they must not keep it from the others, and are saved once their cause is repaired.
#[tokio::test]
async fn dead_letters_that_cannot_be_saved_block_no_others_and_are_saved_after_the_repair()
-> anyhow::Result<()> {
    const REFUSED: usize = 20;
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for number in 0..REFUSED {
        vhost.put(&dead, &format!("refused-{number}"), b"x").await?;
    }
    vhost.put(&dead, "good", b"x").await?;
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let store = ScriptedStore::new(move |letter, _| {
        let refused = letter.message_id.as_deref().is_some_and(|id| id.starts_with("refused"));
        if refused && is_broken.load(Ordering::SeqCst) {
            return Err(Failure::Unexpected("permission denied for table dead_letters".into()));
        }
        Ok(true)
    });
    let status = ConnectionStatus::new("test");
    let collector = DeadLetterCollector::new(vhost.endpoint(), QUEUE, status.clone());
    let collector = Running::start(|stop| collector.run(store.clone(), stop));
    eventually("health to say that some cannot be saved", DEADLINE, async || {
        Ok(status.state().is_err_and(|reason| reason.ends_with("dead letters cannot be saved")).then_some(()))
    })
    .await?;
    assert_eq!(store.saved(1).await?[0].message_id.as_deref(), Some("good"));
    assert!(status.state().is_err(), "health is good although dead letters are held");
    let metrics = recorder.handle().render();
    assert!(metrics.contains("broker_connected{role=\"test\"} 1"), "the connection is open: {metrics}");
    broken.store(false, Ordering::SeqCst);
    store.saved(REFUSED + 1).await?;
    eventually("health to be good", DEADLINE, async || Ok(status.state().is_ok().then_some(()))).await?;
    stop_and_check_acknowledged(collector, &vhost).await
}

/// An operator's policy may allow fewer deliveries than the queue's own limit, and there is no other queue behind this one.
#[tokio::test]
async fn dead_letter_that_cannot_be_saved_for_a_while_is_kept_under_a_policy_of_one_redelivery()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    vhost.set_policy(&dead, Some(r#"{"delivery-limit": 1}"#)).await?;
    vhost.put(&dead, "letter", b"x").await?;
    let store = ScriptedStore::new(|_, earlier_calls| match earlier_calls {
        0 | 1 => Err(Failure::Unexpected("set by the test".into())),
        _ => Ok(true),
    });
    let collector = collect(&vhost, store.clone());
    let letters = store.saved(1).await?;
    assert_eq!(letters[0].headers.get("x-delivery-count"), None, "{letters:?}");
    stop_and_check_acknowledged(collector, &vhost).await
}
