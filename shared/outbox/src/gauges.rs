//! Optional. Without it: `/metrics` shows neither what is pending nor which lanes are held.

use std::{
    collections::HashSet,
    time::{Instant, SystemTime},
};

use database::{Pool, observe};
use events::{
    TraceContext,
    spans::{Kind, Span},
};
use messaging::{ClaimedEvent, Outgoing};
use tokio_util::sync::CancellationToken;

/// Counts the backlog into the gauges `outbox_pending`, `outbox_oldest_pending_age_seconds` and `outbox_parked`, until
/// `stop`.
pub async fn observe_backlog(pool: Pool, stop: CancellationToken) {
    let show = |[pending, oldest_age, parked]: [f64; 3]| {
        metrics::gauge!("outbox_pending").set(pending);
        metrics::gauge!("outbox_oldest_pending_age_seconds").set(oldest_age);
        metrics::gauge!("outbox_parked").set(parked);
    };
    observe(|| count(&pool), show, stop).await;
}

async fn count(pool: &Pool) -> Result<[f64; 3], sqlx::Error> {
    // Each part repeats the condition of a partial index to the letter, so that none reads the history. One scan of that
    // index counts the pending events and finds the first of each lane. The oldest is one of these, and only they are
    // read from the table: with half a million pending events, reading all of them every two seconds took most of a core,
    // and pushed everything else out of PostgreSQL's cache. While vacuum is held back a scan also reads all dead
    // entries, so there is no second one: what is held back is looked up by its key, and not joined. A replayed event waits
    // since its replay, and only an event without attempts keeps that time.
    let row = sqlx::query!(
        r#"with lanes as materialized (
               select lane, count(*) as pending, min(seq) as first_seq
               from outbox where published_at is null and parked_at is null group by lane
           )
           select coalesce(sum(lanes.pending), 0)::float8 as "pending!",
                  coalesce(extract(epoch from clock_timestamp() - min(
                      (select case when attempts = 0 then available_at else created_at end
                       from outbox where seq = lanes.first_seq)
                  )), 0)::float8 as "oldest_age!",
                  ((select count(*) from outbox
                    where published_at is null and attempts > 0 and parked_at is not null)
                   + (select count(*) from outbox_held_back held where held.parked_at is not null
                      and (select published_at is null from outbox where outbox.seq = held.seq)))::float8 as "parked!"
           from lanes"#
    )
    .fetch_one(pool)
    .await?;
    Ok([row.pending, row.oldest_age, row.parked])
}

/// The lanes that a step of the relay holds, in the gauge `outbox_lane_held`, until it is dropped. A relay that waits
/// for the broker or for the database holds its lanes all the time: nothing else can publish their events in the
/// meantime.
#[derive(Debug)]
pub struct HeldLanes {
    lanes: HashSet<i16>,
    began: Instant,
    claimed_at: SystemTime,
}

impl HeldLanes {
    pub(crate) fn new(claimed: &[ClaimedEvent]) -> Self {
        let lanes = claimed.iter().map(|event| event.message.lane).collect();
        let held = Self { lanes, began: Instant::now(), claimed_at: SystemTime::now() };
        held.show(1.0);
        held
    }

    /// Records how long the step took, and for each event how long it was in the outbox before a relay claimed it. The
    /// publisher records the rest.
    pub(crate) fn published(&self, events: &[ClaimedEvent]) {
        metrics::histogram!("outbox_batch_seconds").record(self.began.elapsed().as_secs_f64());
        for event in events {
            let Outgoing { id, event_type, traceparent, .. } = &event.message;
            events::spans::record(|| {
                let context = TraceContext::child_of(traceparent.as_deref());
                Span::ended(context, Kind::Internal, format!("outbox {event_type}"), event.created_at)
                    .until(self.claimed_at)
                    .with("messaging.message.id", id.to_string())
                    .with("shop.aggregate_id", event.aggregate_id.to_string())
                    .with("shop.outbox.lane", i64::from(event.message.lane))
            });
        }
    }

    fn show(&self, value: f64) {
        for lane in &self.lanes {
            metrics::gauge!("outbox_lane_held", "lane" => lane.to_string()).set(value);
        }
    }
}

impl Drop for HeldLanes {
    fn drop(&mut self) {
        self.show(0.0);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use uuid::Uuid;

    use super::*;

    fn in_lane(lane: i16) -> ClaimedEvent {
        let (event_type, body, traceparent) = (String::new(), vec![], None);
        let message = Outgoing { id: Uuid::nil(), event_type, lane, body, traceparent };
        let (aggregate_id, created_at) = (Uuid::nil(), SystemTime::UNIX_EPOCH);
        ClaimedEvent { seq: 1, aggregate_id, created_at, refused_before: false, message }
    }

    #[test]
    fn lanes_are_held_until_the_value_is_dropped() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let held = HeldLanes::new(&[3, 15].map(in_lane));
            let shown = page.render();
            assert!(shown.contains("outbox_lane_held{lane=\"3\"} 1"), "{shown}");
            assert!(shown.contains("outbox_lane_held{lane=\"15\"} 1"), "{shown}");
            drop(held);
            let shown = page.render();
            assert!(shown.contains("outbox_lane_held{lane=\"3\"} 0") && !shown.contains("} 1"), "{shown}");
        });
    }
}
