use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use broker::{Collector, Consumer, ConsumerOptions, Link, topology};
use events::{
    Event,
    transport::{Applied, DeadLetter, Failure, Handler, Shelf},
};
use lapin::options::{BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use testbed::eventually;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{Host, order_created};

const QUEUE: &str = topology::INVENTORY;
const PATIENCE: Duration = Duration::from_secs(30);

type Script = dyn Fn(&DeadLetter, usize) -> Result<(), Failure> + Send + Sync;

/// A shelf that keeps letters, or fails, as the test says: it gets the letter and how many calls there were before.
#[derive(Clone)]
struct ScriptedShelf {
    script: Arc<Script>,
    calls: Arc<Mutex<Vec<DeadLetter>>>,
    kept: Arc<Mutex<Vec<DeadLetter>>>,
}

impl ScriptedShelf {
    fn that(script: impl Fn(&DeadLetter, usize) -> Result<(), Failure> + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), calls: Arc::default(), kept: Arc::default() }
    }

    async fn has(&self, count: usize) -> anyhow::Result<Vec<DeadLetter>> {
        eventually("the letters to be kept", PATIENCE, async || {
            let kept = self.kept.lock().unwrap().clone();
            Ok((kept.len() >= count).then_some(kept))
        })
        .await
    }
}

impl Shelf for ScriptedShelf {
    async fn keep(&self, letter: &DeadLetter) -> Result<(), Failure> {
        let before = self.calls.lock().unwrap().len();
        self.calls.lock().unwrap().push(letter.clone());
        (self.script)(letter, before)?;
        self.kept.lock().unwrap().push(letter.clone());
        Ok(())
    }
}

struct NeverAsked;

impl Handler for NeverAsked {
    async fn apply(&self, _: &[Event]) -> Result<Applied, Failure> {
        panic!("nothing here can be decoded")
    }
}

fn collect(host: &Host, shelf: &ScriptedShelf) -> DropGuard {
    let stop = CancellationToken::new();
    tokio::spawn(Collector::new(host.endpoint(), QUEUE).run(shelf.clone(), stop.clone()));
    stop.drop_guard()
}

async fn is_empty(host: &Host) -> anyhow::Result<()> {
    let dead = topology::dead_letter_queue(QUEUE);
    eventually("the queue of dead letters to be empty", PATIENCE, async || {
        Ok(host.is_empty(&dead).await?.then_some(()))
    })
    .await
}

#[tokio::test]
async fn what_a_consumer_sets_aside_arrives_with_its_reason_its_mark_and_its_bytes() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let stop = CancellationToken::new();
    let consumer = Consumer::new(host.endpoint(), QUEUE, ConsumerOptions::default(), Link::new("test"));
    tokio::spawn(consumer.run(NeverAsked, stop.clone()));
    let _consumer = stop.drop_guard();
    let shelf = ScriptedShelf::that(|_, _| Ok(()));
    let _collector = collect(&host, &shelf);
    host.put(QUEUE, "poison-1", b"\xff\x00 not json").await?;
    host.put(QUEUE, "poison-2", b"{}").await?;
    let letters = shelf.has(2).await?;
    let first = &letters[0];
    assert_eq!((first.queue, first.message_id.as_deref()), (QUEUE, Some("poison-1")));
    assert_eq!(
        (first.reason.as_str(), first.body.as_slice()),
        ("malformed", b"\xff\x00 not json".as_slice())
    );
    assert!(first.detail.starts_with("malformed: "), "{first:?}");
    assert_eq!(first.headers["reason"], "malformed");
    assert_eq!(first.routing_key, QUEUE, "put straight into the queue");
    assert!(first.arrival.is_some() && first.arrival != letters[1].arrival, "{letters:?}");
    is_empty(&host).await
}

#[tokio::test]
async fn what_the_broker_sets_aside_by_its_delivery_limit_says_so() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let event = order_created();
    host.put_event(QUEUE, &event).await?;
    // Whoever takes it gives it back, until the broker has had enough.
    host.channel.basic_qos(1, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions::default();
    let mut deliveries =
        host.channel.basic_consume(QUEUE.into(), "".into(), options, Default::default()).await?;
    let shelf = ScriptedShelf::that(|_, _| Ok(()));
    let _collector = collect(&host, &shelf);
    tokio::spawn(async move {
        use futures_util::StreamExt;
        while let Some(Ok(delivery)) = deliveries.next().await {
            let _ = delivery.reject(BasicRejectOptions { requeue: true }).await;
        }
    });
    let letters = shelf.has(1).await?;
    assert_eq!(letters[0].reason, "delivery-limit");
    assert_eq!(letters[0].message_id, Some(event.event_id.to_string()));
    assert_eq!(letters[0].body, event.payload.as_bytes());
    assert!(letters[0].arrival.is_some(), "{letters:?}");
    is_empty(&host).await
}

#[tokio::test]
async fn while_the_shelf_is_away_the_queue_is_the_buffer_and_nothing_is_skipped() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for number in 0..5 {
        host.put(&dead, &format!("letter-{number}"), b"x").await?;
    }
    let shelf = ScriptedShelf::that(|_, before| {
        if before < 6 { Err(Failure::Temporary("the database is away".into())) } else { Ok(()) }
    });
    let _collector = collect(&host, &shelf);
    let letters = shelf.has(5).await?;
    let ids: Vec<_> = letters.iter().map(|letter| letter.message_id.clone().unwrap_or_default()).collect();
    assert_eq!(ids, ["letter-0", "letter-1", "letter-2", "letter-3", "letter-4"]);
    assert_eq!((letters[0].reason.as_str(), &letters[0].arrival), ("unknown", &None), "put there by hand");
    is_empty(&host).await
}

#[tokio::test]
async fn a_letter_that_cannot_be_kept_stays_in_its_queue_and_the_others_go_on() -> anyhow::Result<()> {
    let host = Host::new().await?;
    let dead = topology::dead_letter_queue(QUEUE);
    for id in ["bad", "good"] {
        host.put(&dead, id, b"x").await?;
    }
    let shelf = ScriptedShelf::that(|letter, _| match letter.message_id.as_deref() {
        Some("bad") => Err(Failure::Permanent("too odd".into())),
        _ => Ok(()),
    });
    let collector = collect(&host, &shelf);
    assert_eq!(shelf.has(1).await?[0].message_id.as_deref(), Some("good"));
    drop(collector);
    // To be found by whoever comes next, however often it was handed over.
    let heir = ScriptedShelf::that(|_, _| Ok(()));
    let _collector = collect(&host, &heir);
    assert_eq!(heir.has(1).await?[0].message_id.as_deref(), Some("bad"));
    is_empty(&host).await
}

#[tokio::test]
async fn a_collector_that_dies_after_keeping_and_before_acknowledging_brings_the_same_letter_again()
-> anyhow::Result<()> {
    let host = Host::new().await?;
    let stop = CancellationToken::new();
    let consumer = Consumer::new(host.endpoint(), QUEUE, ConsumerOptions::default(), Link::new("test"));
    tokio::spawn(consumer.run(NeverAsked, stop.clone()));
    let _consumer = stop.drop_guard();
    host.put(QUEUE, "poison", b"x").await?;

    /// Keeps a letter, and never gets around to saying so.
    struct Stuck(ScriptedShelf);
    impl Shelf for Stuck {
        async fn keep(&self, letter: &DeadLetter) -> Result<(), Failure> {
            self.0.keep(letter).await?;
            std::future::pending().await
        }
    }
    let first = ScriptedShelf::that(|_, _| Ok(()));
    let collector = Collector::new(host.endpoint(), QUEUE);
    let doomed = tokio::spawn(collector.run(Stuck(first.clone()), CancellationToken::new()));
    let before = first.has(1).await?;
    doomed.abort();
    let heir = ScriptedShelf::that(|_, _| Ok(()));
    let _collector = collect(&host, &heir);
    let after = heir.has(1).await?;
    let mark = |letter: &DeadLetter| (letter.arrival.clone(), letter.message_id.clone(), letter.body.clone());
    assert!(before[0].arrival.is_some());
    assert_eq!(mark(&before[0]), mark(&after[0]), "by this the table knows it again");
    is_empty(&host).await
}
