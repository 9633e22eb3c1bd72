use std::time::Duration;

use events::{Backoff, transport::Handler};
use faults::Sabotage;
use futures_util::{FutureExt, StreamExt};
use lapin::{
    Channel,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Endpoint, Error, Link,
    channel_line::{ChannelLine, earlier_deliveries},
    connect::{PATIENCE, close, within},
    dead_letters::DeadLetters,
    group::settle,
    topology::{self, Queue},
};

/// How much a consumer takes at a time.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// How many unacknowledged messages the broker may hand over, 1 to 10,000. A round trip per message costs nine
    /// tenths of the throughput; an unlimited number would be buffered here without bound.
    pub prefetch: u16,
    /// The most messages that are handled in one transaction.
    pub group: usize,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self { prefetch: 500, group: 250 }
    }
}

/// How often a guest's queue is bound again, however much it has to do: nobody else knows of its bindings, and with one of
/// several lost the queue is not even silent.
const BIND_EVERY: Duration = Duration::from_secs(5);

/// A queue that has been silent for this long is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);

/// A message that was handed over this often without an answer may be what kills us.
const SUSPICIOUS: i64 = 2;

/// Consumes one queue until it is told to stop, and comes back after every failure.
///
/// It comes back carefully, with one message in hand instead of hundreds, until it meets one that is above suspicion. A
/// message that kills its consumer would otherwise burn, crash by crash, the delivery limit of everything that had been
/// handed over together with it, and all of that would end up in the dead letters. This way only the killer does.
pub struct Consumer {
    endpoint: Endpoint,
    queue: &'static str,
    options: ConsumerOptions,
    link: Link,
}

/// Why a session ended without an error.
enum End {
    /// The stop was called.
    Stopped,
    /// The message in hand was an ordinary one: time to take many.
    AboveSuspicion,
}

impl Consumer {
    /// A consumer of `queue` that is not connected yet.
    pub fn new(endpoint: Endpoint, queue: &'static str, options: ConsumerOptions, link: Link) -> Self {
        Self { endpoint, queue, options, link }
    }

    /// Hands what arrives to `handler`, until `stop`. What is in hand then is finished first.
    pub async fn run(self, handler: impl Handler, stop: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let careful = if faults::sabotaged(Sabotage::CrashLoopWithoutDeadLetters) {
            self.options.clone()
        } else {
            ConsumerOptions { prefetch: 1, group: 1 }
        };
        let mut options = &careful;
        while !stop.is_cancelled() {
            let ended = match self.open(options.prefetch, &handler, &stop).await {
                Ok(mut session) => {
                    backoff.reset();
                    self.link.up();
                    let ended = session.consume(options.group).await;
                    session.close().await;
                    ended
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(End::Stopped) => {}
                Ok(End::AboveSuspicion) => options = &self.options,
                Err(error) => {
                    options = &careful;
                    self.link.down(&error.to_string());
                    stop.run_until_cancelled(sleep(backoff.next_wait())).await;
                }
            }
        }
    }

    async fn open<'run, H: Handler>(
        &self,
        prefetch: u16,
        handler: &'run H,
        stop: &'run CancellationToken,
    ) -> Result<Session<'run, H>, Error> {
        let (connection, channel) = self.endpoint.open("consumer").await?;
        let deliveries = match self.subscribe(&channel, prefetch).await {
            Ok(deliveries) => deliveries,
            Err(error) => {
                // A broker that was frozen may carry out the request when it wakes. On a connection that nobody closed
                // it would have an active consumer then that swallows everything.
                close(connection).await;
                return Err(error);
            }
        };
        let dead_letters = DeadLetters::new(self.endpoint.clone(), self.queue);
        let line = ChannelLine { connection, channel, dead_letters };
        let own = self.endpoint.own(self.queue);
        let bound = Instant::now();
        Ok(Session { line, deliveries, queue: self.queue, own, bound, handler, stop })
    }

    async fn subscribe(&self, channel: &Channel, prefetch: u16) -> Result<lapin::Consumer, Error> {
        // Before consuming, or the first flood is not limited.
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        within(PATIENCE, "basic.qos", qos).await?;
        let consume = channel.basic_consume(
            self.queue.into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        within(PATIENCE, "basic.consume", consume).await
    }
}

/// One connection's worth of consuming. Any error ends it; what was not acknowledged is delivered again.
struct Session<'run, H> {
    line: ChannelLine,
    deliveries: lapin::Consumer,
    queue: &'static str,
    own: Option<Queue>,
    /// When our own queue was last bound.
    bound: Instant,
    handler: &'run H,
    stop: &'run CancellationToken,
}

impl<H: Handler> Session<'_, H> {
    /// Until the stop, until the connection fails, or, one by one, until a message is above suspicion.
    async fn consume(&mut self, largest_group: usize) -> Result<End, Error> {
        loop {
            if let Some(own) = self.own.filter(|_| self.bound.elapsed() > BIND_EVERY) {
                topology::bind_again(&self.line.channel, own).await?;
                self.bound = Instant::now();
            }
            let next = self.stop.run_until_cancelled(timeout(ASK_AFTER, self.deliveries.next())).await;
            let first = match next {
                None => return Ok(End::Stopped),
                Some(Ok(Some(delivery))) => delivery?,
                // The broker cancelled the consumer: the queue was deleted, or its leader moved.
                Some(Ok(None)) => return Err(Error::Silent(ASK_AFTER, "a subscription that was cancelled")),
                Some(Err(_)) => {
                    self.line.still_there(self.queue).await?;
                    continue;
                }
            };
            let suspicious = earlier_deliveries(&first) >= SUSPICIOUS;
            // Whatever has arrived already comes along; nothing is waited for. Under load groups are large and cheap
            // per message, at rest a message is handled at once.
            let mut group = vec![first];
            while group.len() < largest_group
                && let Some(Some(delivery)) = self.deliveries.next().now_or_never()
            {
                group.push(delivery?);
            }
            settle(&mut self.line, self.handler, self.queue, group, self.stop).await?;
            if largest_group == 1 && !suspicious {
                return Ok(End::AboveSuspicion);
            }
        }
    }

    /// Closes the connection, and nothing before it. With a `basic.cancel` first, the broker makes the next consumer the
    /// active one while what was prefetched here is still out: that one gets later messages first, and these come behind
    /// them. When a connection goes, both happen in one step. (Found by the soak: one order in 24,000.)
    async fn close(self) {
        self.line.close().await;
    }
}
