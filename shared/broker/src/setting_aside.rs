//! What a consumer does with a message that it cannot apply, or that may crash it.

use std::time::Duration;

use events::Event;
use messaging::{DeadLetter, DeadLetterStore, Failure, Handler, crash_points::crash_point};
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    Error,
    group::{DeliveryChannel, Received, Settling, Step},
};

/// How often an event is tried that fails for an unknown reason, before it is set aside.
const UNEXPECTED_TRIES: u32 = 5;

/// How many recorded attempts at an event may crash the consumer before it is set aside.
const MAX_CRASHES: u32 = 5;

impl<C: DeliveryChannel, H: Handler, L: DeadLetterStore> Settling<'_, C, H, L> {
    /// Sets aside an event that cannot be applied: at once if the failure is permanent, else after a few more tries.
    pub(crate) async fn isolate(
        &mut self,
        received: &Received<C::Delivery>,
        failure: &Failure,
    ) -> Result<(), Error> {
        let mut detail = failure.to_string();
        let mut is_permanent = matches!(failure, Failure::Permanent(_));
        for attempt in 2..=UNEXPECTED_TRIES {
            if is_permanent {
                break;
            }
            // 100, 200, 400, 800 ms. The message is kept meanwhile: returned to the queue, later events of its aggregate
            // would overtake it.
            sleep(Duration::from_millis(50) * 2_u32.pow(attempt - 1)).await;
            let Event { id, event_type, aggregate_id, .. } = &received.event;
            tracing::warn!(event_id = %id, event_type, %aggregate_id, attempt, detail, "trying an event again");
            match self.apply(std::slice::from_ref(&received.event)).await? {
                Ok(()) => return self.channel.acknowledge(&received.delivery, true).await,
                Err(next) => {
                    (detail, is_permanent) = (next.to_string(), matches!(next, Failure::Permanent(_)));
                }
            }
        }
        let reason = if is_permanent { "permanent" } else { "unexpected" };
        self.set_aside(&received.delivery, reason, &detail).await
    }

    /// Saves a message as a dead letter, then acknowledges it: a crash in between has it delivered and saved again, which
    /// is recognised.
    pub(crate) async fn set_aside(
        &mut self,
        delivery: &C::Delivery,
        reason: &str,
        detail: &str,
    ) -> Result<(), Error> {
        let letter = self.channel.dead_letter(delivery, reason, detail);
        let saving = || self.letters.save(&letter);
        if let Err(failure) = self.retry("save a dead letter", 1, saving).await? {
            // The broker keeps it in the dead-letter queue, from which the collector tries to save it again and again.
            let message_id = letter.message_id;
            tracing::error!(queue = self.queue, message_id, reason, detail, %failure, "failed to save a dead letter");
            return self.channel.reject(delivery).await;
        }
        self.acknowledge_dead_letter(delivery, &letter).await?;
        let message_id = letter.message_id;
        tracing::error!(queue = self.queue, message_id, reason, detail, "message set aside as a dead letter");
        Ok(())
    }

    /// Counts an attempt at an event that may crash this process. The broker's count of deliveries does not tell: it grows
    /// for all messages that were held together with the cause.
    pub(crate) async fn begin_attempt(
        &self,
        received: Received<C::Delivery>,
    ) -> Result<Step<C::Delivery>, Error> {
        let Event { id, event_type, aggregate_id, .. } = &received.event;
        let counting = || self.letters.begin_attempt(self.queue, *id);
        match self.retry("count an attempt", 1, counting).await? {
            Ok(begun) if begun > MAX_CRASHES => {
                let detail = format!("its consumer crashed during {MAX_CRASHES} attempts to apply it alone");
                return Ok(Step::SetAside { delivery: received.delivery, reason: "attempt-limit", detail });
            }
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!(event_id = %id, event_type, %aggregate_id, %failure, "failed to count an attempt");
            }
        }
        Ok(Step::Apply(vec![received]))
    }

    /// Forgets the attempts at an event: this process has survived the last one.
    pub(crate) async fn end_attempts(&self, event: Uuid) {
        if let Err(failure) = self.letters.end_attempts(self.queue, event).await {
            tracing::warn!(event_id = %event, %failure, "failed to forget the attempts at an event");
        }
    }

    /// Sets aside an event that is behind a dead letter. `false`: it no longer is, and can be applied.
    pub(crate) async fn set_aside_behind(&mut self, received: &Received<C::Delivery>) -> Result<bool, Error> {
        let Event { id, event_type, aggregate_id, .. } = &received.event;
        let detail = "an older event of its aggregate is a dead letter";
        let letter = self.channel.dead_letter(&received.delivery, "behind", detail);
        let saving = || self.letters.save_behind(&letter);
        match self.retry("save an event behind a dead letter", 1, saving).await? {
            Ok(true) => {
                self.acknowledge_dead_letter(&received.delivery, &letter).await?;
                tracing::warn!(event_id = %id, event_type, %aggregate_id, "event set aside behind a dead letter");
            }
            Ok(false) => return Ok(false),
            Err(failure) => {
                tracing::error!(event_id = %id, event_type, %aggregate_id, %failure, "failed to save a dead letter");
                self.channel.reject(&received.delivery).await?;
            }
        }
        Ok(true)
    }

    async fn acknowledge_dead_letter(
        &mut self,
        delivery: &C::Delivery,
        letter: &DeadLetter,
    ) -> Result<(), Error> {
        crash_point("dead-letter-saved");
        self.channel.acknowledge(delivery, false).await?;
        metrics::counter!("inbox_dead_lettered_total", "reason" => letter.reason.clone()).increment(1);
        Ok(())
    }
}
