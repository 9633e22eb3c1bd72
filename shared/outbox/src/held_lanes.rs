use messaging::LANES;

/// The lanes that a step of the relay holds, in the gauge `outbox_lane_held`, until it is dropped. A relay that waits for the
/// broker or for the database holds its lanes all the time, so the gauge shows which events nothing else can publish
/// meanwhile.
pub(crate) struct HeldLanes<'a>(&'a [i16]);

/// The values of the label. Lanes are numbered from 0.
const NAMES: [&str; LANES as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];

impl<'a> HeldLanes<'a> {
    pub(crate) fn new(lanes: &'a [i16]) -> Self {
        let held = Self(lanes);
        held.set(1.0);
        held
    }

    fn set(&self, value: f64) {
        for name in self.0.iter().filter_map(|lane| NAMES.get(usize::try_from(*lane).ok()?)) {
            metrics::gauge!("outbox_lane_held", "lane" => *name).set(value);
        }
    }
}

impl Drop for HeldLanes<'_> {
    fn drop(&mut self) {
        self.set(0.0);
    }
}
