//! Optional. Without it: no gauge shows which events wait for a relay that is stuck.

use std::collections::HashSet;

use events::LANES;

/// The lanes that a step of the relay holds, in the gauge `outbox_lane_held`, until it is dropped. A relay that waits for the
/// broker or for the database holds its lanes all the time, so the gauge shows which events nothing else can publish
/// meanwhile.
pub(crate) struct HeldLanes(HashSet<i16>);

/// The values of the label. Lanes are numbered from 0.
const NAMES: [&str; LANES as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

impl HeldLanes {
    pub(crate) fn new(lanes: impl IntoIterator<Item = i16>) -> Self {
        let held = Self(lanes.into_iter().collect());
        held.set(1.0);
        held
    }

    fn set(&self, value: f64) {
        for name in self.0.iter().filter_map(|lane| NAMES.get(usize::try_from(*lane).ok()?)) {
            metrics::gauge!("outbox_lane_held", "lane" => *name).set(value);
        }
    }
}

impl Drop for HeldLanes {
    fn drop(&mut self) {
        self.set(0.0);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn lanes_are_held_until_the_value_is_dropped() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let held = HeldLanes::new([3, 15]);
            let shown = page.render();
            assert!(shown.contains("outbox_lane_held{lane=\"3\"} 1"), "{shown}");
            assert!(shown.contains("outbox_lane_held{lane=\"15\"} 1"), "{shown}");
            drop(held);
            let shown = page.render();
            assert!(shown.contains("outbox_lane_held{lane=\"3\"} 0") && !shown.contains("} 1"), "{shown}");
        });
    }
}
