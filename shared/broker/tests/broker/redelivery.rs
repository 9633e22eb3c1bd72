//! What happens to messages whose consumer was lost.

use broker::{ConnectionStatus, Consumer, ConsumerOptions, topology};
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use testbed::eventually;
use uuid::Uuid;

use crate::{
    scripted_handler::{QUEUE, ScriptedHandler, consume, unavailable},
    support::{DEADLINE, Running, Vhost, order_created},
};

/// Puts so many events into the queue, and returns their ids.
async fn put_events(vhost: &Vhost, count: usize) -> anyhow::Result<Vec<Uuid>> {
    let mut ids = vec![];
    for _ in 0..count {
        let event = order_created();
        vhost.put_event(QUEUE, &event).await?;
        ids.push(event.event_id);
    }
    Ok(ids)
}

/// Has a consumer receive the first messages of the queue and be lost, several times.
async fn lose_consumers(vhost: &Vhost, messages: u16, times: usize) -> anyhow::Result<()> {
    for _ in 0..times {
        let channel = vhost.open_channel().await?;
        channel.basic_qos(messages, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries =
            channel.basic_consume(QUEUE.into(), "".into(), options, Default::default()).await?;
        for _ in 0..messages {
            deliveries.next().await.unwrap()?;
        }
        channel.close(200, "lost".into()).await?;
    }
    Ok(())
}

/// Starts a consumer, and waits until it is subscribed.
async fn subscribe(vhost: &Vhost, handler: &ScriptedHandler) -> anyhow::Result<Running> {
    let status = ConnectionStatus::new("test");
    let consumer = Consumer::new(vhost.endpoint(), QUEUE, ConsumerOptions::default(), status.clone());
    let running = Running::start(|stop| consumer.run(handler.clone(), handler.letters.clone(), stop));
    eventually("a consumer to be subscribed", DEADLINE, async || Ok(status.state().ok())).await?;
    Ok(running)
}

/// RabbitMQ puts what a lost consumer held behind what was returned before it and not taken. So a standby has to take
/// everything: with a smaller prefetch it would take the first event, be lost too, and leave that one at the end.
#[tokio::test]
async fn events_of_two_lost_consumers_are_applied_in_their_order() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let applied_before = put_events(&vhost, 1).await?;
    let is_applied = applied_before.clone();
    let holding =
        ScriptedHandler::new(
            move |event, _| {
                if is_applied.contains(&event.id) { Ok(()) } else { Err(unavailable()) }
            },
        );
    let active = subscribe(&vhost, &holding).await?;
    holding.has_applied(&applied_before).await?;
    let events = put_events(&vhost, 10).await?;
    let has_tried = async |handler: &ScriptedHandler| {
        eventually("a consumer to try the first event", DEADLINE, async || {
            Ok((handler.tries(events[0]) > 0).then_some(()))
        })
        .await
    };
    has_tried(&holding).await?;
    let holding_too = ScriptedHandler::new(|_, _| Err(unavailable()));
    let standby = subscribe(&vhost, &holding_too).await?;
    active.kill();
    has_tried(&holding_too).await?;
    let applying = ScriptedHandler::that_applies();
    let _last = subscribe(&vhost, &applying).await?;
    standby.kill();
    applying.has_applied(&events).await?;
    assert_eq!(applying.applied(), events);
    Ok(())
}

#[tokio::test]
async fn event_that_crashed_its_consumer_often_is_set_aside_and_those_held_with_it_are_applied()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events = put_events(&vhost, 4).await?;
    lose_consumers(&vhost, 3, 30).await?;
    let handler = ScriptedHandler::that_applies();
    handler.letters.set_attempts(events[0], 5);
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&events[1..]).await?;
    let letters = handler.letters.letters();
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0].message_id, Some(events[0].to_string()));
    assert_eq!((letters[0].reason.as_str(), handler.tries(events[0])), ("attempt-limit", 0));
    assert!(vhost.is_empty(&topology::dead_letter_queue(QUEUE)).await?);
    Ok(())
}

#[tokio::test]
async fn event_that_may_crash_its_consumer_is_applied_alone_while_its_attempt_is_recorded()
-> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events = put_events(&vhost, 6).await?;
    lose_consumers(&vhost, 3, 2).await?;
    // In a failed attempt as in a successful one.
    let letters = ScriptedHandler::that_applies().letters;
    let recorded = letters.clone();
    let suspicious = events[..3].to_vec();
    let mut handler = ScriptedHandler::new(move |event, attempt| {
        let expected = u32::from(suspicious.contains(&event.id));
        assert_eq!(recorded.attempts(event.id), expected, "attempts at {}", event.id);
        if attempt == 1 { Err(unavailable()) } else { Ok(()) }
    });
    handler.letters = letters.clone();
    let _consumer = consume(&vhost, &handler);
    handler.has_applied(&events).await?;
    assert_eq!(handler.applied(), events);
    eventually("all attempts to have ended", DEADLINE, async || {
        Ok(events.iter().all(|event| letters.attempts(*event) == 0).then_some(()))
    })
    .await
}

/// A service that is restarted again and again, because its handler cannot work, has not crashed.
#[tokio::test]
async fn stops_during_a_temporary_failure_set_nothing_aside() -> anyhow::Result<()> {
    let vhost = Vhost::new().await?;
    let events = put_events(&vhost, 1).await?;
    lose_consumers(&vhost, 1, 2).await?;
    let waiting = ScriptedHandler::new(|_, _| Err(unavailable()));
    for restart in 0..7 {
        let tries = waiting.tries(events[0]);
        let consumer = consume(&vhost, &waiting);
        eventually("the consumer to try the event", DEADLINE, async || {
            Ok((waiting.tries(events[0]) > tries).then_some(()))
        })
        .await?;
        consumer.stop().await?;
        assert_eq!(waiting.letters.attempts(events[0]), 0, "after stop {restart}");
    }
    let applying = ScriptedHandler::that_applies();
    let _consumer = consume(&vhost, &applying);
    applying.has_applied(&events).await
}
