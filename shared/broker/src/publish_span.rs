use std::time::SystemTime;

use events::{
    TraceContext, routing_key,
    spans::{Kind, Span},
};
use messaging::{Outgoing, PublishOutcome};

use crate::topology::EVENTS;

/// Records for each message of a batch how long its publishing took, from the first byte of the batch to its last confirm.
pub(crate) fn record(batch: &[&Outgoing], outcomes: &[PublishOutcome], began: SystemTime) {
    for (message, outcome) in batch.iter().zip(outcomes) {
        events::spans::record(|| {
            let context = TraceContext::child_of(message.traceparent.as_deref());
            let span = Span::ended(context, Kind::Producer, format!("publish {}", message.event_type), began)
                .with("messaging.system", "rabbitmq")
                .with("messaging.operation.type", "send")
                .with("messaging.operation.name", "publish")
                .with("messaging.destination.name", EVENTS)
                .with("messaging.rabbitmq.destination.routing_key", routing_key(&message.event_type))
                .with("messaging.message.id", message.id.to_string())
                .with("messaging.batch.message_count", i64::try_from(batch.len()).unwrap_or(i64::MAX));
            match outcome {
                PublishOutcome::Confirmed => span,
                PublishOutcome::Refused(refusal) => span.failed(refusal.to_string()),
                PublishOutcome::Unknown => span.failed("not confirmed: the broker may or may not have it"),
            }
        });
    }
}
