//! Checks the broker at the start of a client, and changes the number of partitions. Optional. Without it: an operator moves the bindings by hand.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{
    Connection,
    options::{ExchangeDeleteOptions, QueueDeclareOptions},
    types::FieldTable,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Endpoint,
    connect::{Role, close, queue_state, subscribe},
    error::{Error, Fault, request},
    queues::{SHOP_QUEUES, partitions},
    topology::{
        KnownQueues, PARTITIONS, arguments, changing, declare_queue, declare_queues, record_number,
        unbind_queues,
    },
};

impl Endpoint {
    /// Connects at start, to one node after the other until one accepts this client. `false`: the broker is unavailable, which
    /// is no error: the tasks wait for it.
    ///
    /// # Errors
    /// [`Fault::Setting`], or another number of partitions whose queues are in use: waiting will not help.
    pub async fn check(&self) -> Result<bool, Error> {
        let (mut tries, mut unavailable) = (0, 0);
        loop {
            let refused = match self.with_connection(Role::CHECK, async |_, _| Ok(())).await {
                Ok(()) => return Ok(true),
                Err(Error::Refused(Fault::Setting, text)) => {
                    return Err(Error::Refused(Fault::Setting, self.at_node(text)));
                }
                Err(error @ Error::OtherPartitions { .. }) => {
                    unavailable = 0;
                    error
                }
                Err(_) => {
                    unavailable += 1;
                    if unavailable == self.nodes() {
                        return Ok(false);
                    }
                    continue;
                }
            };
            let Error::OtherPartitions { current, wanted } = refused else { return Err(refused) };
            let changing = async {
                let connection = self.connect(Role::CHECK).await?;
                let changed = change_number(&connection, current, wanted, &self.known_queues).await;
                close(connection).await;
                changed
            };
            match changing.await {
                Ok(()) => return Ok(true),
                Err(reason) if tries == CHANGE_TRIES => {
                    tracing::error!(%reason, "failed to change the number of partitions");
                    return Err(refused);
                }
                Err(_) => tries += 1,
            }
            sleep(Duration::from_millis(fastrand::u64(200..1000))).await;
        }
    }
}

/// How often a process that starts with another number of partitions tries to change it: another one may be doing so, or the
/// connections of those that were stopped may be about to end.
const CHANGE_TRIES: u32 = 5;

/// Changes the number of partitions, if nothing uses the queues of the current number: no consumer and no message. Otherwise
/// an aggregate's later events could be applied before earlier ones. One process at a time, by a queue of its connection.
///
/// While it lasts a number is recorded that no process has, so none publishes or consumes. A process that starts after the
/// change was interrupted goes on with it, or back to the old number if it has that one.
///
/// The old queues stay, without bindings. What a relay of the old number puts there at this very moment is found by the second
/// look, and then the old number stays, too.
async fn change_number(
    connection: &Connection,
    current: u8,
    wanted: u8,
    known: &KnownQueues,
) -> Result<(), Error> {
    let channel = request("channel.open", connection.create_channel()).await?;
    let alone = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let locked = channel.queue_declare(PARTITIONS.into(), alone, FieldTable::default());
    request("queue.declare", locked).await?;
    let record = async |number: &str| {
        let deleted = channel.exchange_delete(PARTITIONS.into(), ExchangeDeleteOptions::default());
        request("exchange.delete", deleted).await?;
        record_number(&channel, number).await
    };
    if wanted == current {
        declare_queues(connection, &channel, &SHOP_QUEUES, current, known).await?;
        return record(&current.to_string()).await;
    }
    check_unused(connection, current, known).await?;
    record(&changing(current)).await?;
    unbind_queues(&channel, current).await?;
    if let Err(used) = check_unused(connection, current, known).await {
        declare_queues(connection, &channel, &SHOP_QUEUES, current, known).await?;
        record(&current.to_string()).await?;
        return Err(used);
    }
    record(&wanted.to_string()).await?;
    tracing::warn!(current, wanted, "the number of partitions has been changed");
    Ok(())
}

/// Fails if a queue of this number of partitions has a message or a consumer. While its leader does not answer, RabbitMQ reports
/// neither: so it must first report this client as a consumer.
async fn check_unused(connection: &Connection, number: u8, known: &KnownQueues) -> Result<(), Error> {
    for queue in SHOP_QUEUES {
        for name in partitions(queue.name, number) {
            let channel = request("channel.open", connection.create_channel()).await?;
            declare_queue(&channel, &name, arguments(queue.name), known).await?;
            let mut deliveries = subscribe(&channel, &name, 1, None).await?;
            let is_empty = timeout(DELIVERY_WAIT, deliveries.next()).await.is_err()
                && queue_state(&channel, &name).await? == (0, true);
            // Not `basic.cancel`: the next consumer would receive later messages before one that was delivered here.
            request("channel.close", channel.close(200, "looked".into())).await?;
            if !is_empty || !is_left(connection, &name).await? {
                return Err(Error::InUse(name));
            }
        }
    }
    Ok(())
}

/// Whether a queue without messages gets rid of its last consumer, whose channel was closed: it hears of that a moment later.
async fn is_left(connection: &Connection, queue: &str) -> Result<bool, Error> {
    let channel = request("channel.open", connection.create_channel()).await?;
    let closed = Instant::now();
    let mut is_left = false;
    while !is_left && closed.elapsed() < LEAVE_WAIT {
        sleep(LEAVE_INTERVAL).await;
        is_left = queue_state(&channel, queue).await? == (0, false);
    }
    request("channel.close", channel.close(200, "looked".into())).await?;
    Ok(is_left)
}

/// How long a message that waits may take to be delivered to a new consumer.
const DELIVERY_WAIT: Duration = Duration::from_millis(250);

/// How long the consumer of a closed channel may stay at its queue, and how often that is looked at.
const LEAVE_WAIT: Duration = Duration::from_secs(1);
const LEAVE_INTERVAL: Duration = Duration::from_millis(20);
