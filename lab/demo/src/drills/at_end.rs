//! The conditions at the end of a drill, beside the reconciliation.

use super::drill_run::{DrillRun, Ended};

/// The claim is that no order times out.
pub(super) fn no_time_outs(run: &DrillRun<'_>, ended: &Ended) {
    // A service that was restarted counts from zero again.
    run.promised(format!("{} orders timed out", ended.timed_out), ended.timed_out <= 0.0);
}

/// The claim is that a temporary failure uses up no attempt.
pub(super) fn nothing_is_set_aside(run: &DrillRun<'_>, ended: &Ended) {
    let aside: u64 = ended.settled.reconciliation.set_aside.iter().map(|group| group.count).sum();
    run.promised(format!("{aside} events were set aside for a failure that was temporary"), aside == 0);
}

/// Without copies nothing is proven.
pub(super) fn copies_were_dropped(run: &DrillRun<'_>, ended: &Ended) {
    let dropped = ended.duplicates_dropped.known();
    run.injected(format!("{dropped} copies were recognized and dropped"), dropped > 0);
}

/// Without a refusal the fault was not felt.
pub(super) fn orders_were_refused(run: &DrillRun<'_>, ended: &Ended) {
    let (refused, failed) = (ended.load.refused_in_all(), ended.load.failed);
    let what = format!("{refused} orders were refused and {failed} got no answer");
    run.injected(what, refused + failed > 0);
}

/// The claim is that the client of each order gets an answer. A request that reaches a connection which the service is
/// closing gets none, and writes nothing: with HTTP/1.1 neither side can know of the other.
pub(super) fn each_order_was_answered(run: &DrillRun<'_>, ended: &Ended) {
    let (exist, acknowledged) =
        (ended.settled.reconciliation.orders, ended.settled.reconciliation.acknowledged);
    let unanswered = exist.saturating_sub(acknowledged);
    run.promised(format!("{unanswered} orders were written whose clients got no answer"), unanswered == 0);
}

/// The claim is that not a single order fails.
pub(super) fn no_order_failed(run: &DrillRun<'_>, ended: &Ended) {
    let failed = ended.load.refused_in_all() + ended.load.failed;
    run.promised(
        format!("{failed} of {} orders were refused or got no answer", ended.load.sent),
        failed == 0,
    );
}
