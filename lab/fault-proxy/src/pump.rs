use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::tcp::{ReadHalf, WriteHalf},
    time::{Instant, sleep_until},
};

use crate::{
    active_faults::ActiveFault, effects::Effects, failed_sockets::FailedSockets, fault::Toward,
    fault_view::FaultView, queue::Queue, route_state::RouteState,
};

const COPY_BUFFER_BYTES: usize = 16 * 1024;

/// How many writes a trickle makes of the bytes of one second.
const TRICKLE_WRITES_PER_SECOND: u32 = 20;

/// Why both connections of a pair are to be reset.
pub(crate) enum Reset {
    /// The condition of a fault was met in this direction.
    Fault(Toward),
    /// The peer that this direction reads from has sent a reset.
    Peer(Toward),
}

/// Forwards one direction of one connection as the faults permit.
pub(crate) struct Pump<'a> {
    toward: Toward,
    source: ReadHalf<'a>,
    sink: WriteHalf<'a>,
    failed: &'a FailedSockets,
    route: &'a RouteState,
    view: FaultView,
    effects: Effects,
    queue: Queue,
    source_end: Option<SourceEnd>,
    next_trickle: Instant,
}

/// The end of the source. It is forwarded after all bytes, and a delay applies to it too.
struct SourceEnd {
    arrived: Instant,
    is_reset: bool,
}

/// What a pump can do now, apart from reading.
enum Step {
    Wait,
    WaitUntil(Instant),
    Write { bytes: usize, reset: Option<Arc<ActiveFault>> },
    End { is_reset: bool },
}

impl<'a> Pump<'a> {
    pub(crate) fn new(
        toward: Toward,
        (source, sink): (ReadHalf<'a>, WriteHalf<'a>),
        failed: &'a FailedSockets,
        route: &'a RouteState,
    ) -> Self {
        let view = FaultView::new(&route.faults);
        let effects = Effects::new(toward, view.list());
        let (queue, next_trickle) = (Queue::default(), Instant::now());
        Self { toward, source, sink, failed, route, view, effects, queue, source_end: None, next_trickle }
    }

    /// Runs until the source has ended and all its bytes are forwarded, or until the connection is to be reset.
    ///
    /// # Errors
    /// The reset. The caller must drop the pump of the other direction without polling it again: it could forward
    /// the answer to the last bytes.
    pub(crate) async fn run(mut self) -> Result<(), Reset> {
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        loop {
            let (mut wake_up, mut writable, mut reset) = (None, 0, None);
            match self.step() {
                Step::Wait => {}
                Step::WaitUntil(time) => wake_up = Some(time),
                Step::Write { bytes: 0, reset: Some(fault) } => {
                    self.reset(&fault)?;
                    continue;
                }
                Step::Write { bytes, reset: after } => (writable, reset) = (bytes, after),
                Step::End { is_reset: true } => return Err(Reset::Peer(self.toward)),
                Step::End { is_reset: false } => {
                    if self.sink.shutdown().await.is_err() {
                        self.failed.note_sink(self.toward);
                    }
                    return Ok(());
                }
            }
            let may_read = !self.effects.is_black_hole
                && self.source_end.is_none()
                && self.queue.has_room(!self.effects.delay.is_zero());
            // New faults come first: steady traffic must not keep an injection waiting.
            tokio::select! {
                biased;
                () = self.view.changed() => self.effects.update(self.view.list()),
                () = sleep_until(wake_up.unwrap_or_else(Instant::now)), if wake_up.is_some() => {}
                written = self.sink.write(&self.queue.front()[..writable]), if writable > 0 => match written {
                    Ok(written) if written > 0 => {
                        self.wrote(written);
                        if let Some(fault) = reset && written == writable {
                            self.reset(&fault)?;
                        }
                    }
                    // The other direction reports the end of this socket to the source.
                    Ok(_) | Err(_) => {
                        self.failed.note_sink(self.toward);
                        return Ok(());
                    }
                },
                read = self.source.read(&mut buffer), if may_read => self.was_read(read.ok(), &buffer),
            }
        }
    }

    fn step(&self) -> Step {
        if self.effects.is_black_hole {
            return Step::Wait;
        }
        let (arrived, is_trickled) = match (self.queue.front_arrived(), &self.source_end) {
            (Some(arrived), _) => (arrived, self.effects.trickle.is_some()),
            (None, Some(end)) => (end.arrived, false),
            (None, None) => return Step::Wait,
        };
        let mut due = arrived + self.effects.delay;
        if is_trickled {
            due = due.max(self.next_trickle);
        }
        if due > Instant::now() {
            return Step::WaitUntil(due);
        }
        match &self.source_end {
            Some(end) if self.queue.front().is_empty() => Step::End { is_reset: end.is_reset },
            _ => self.write_step(),
        }
    }

    fn write_step(&self) -> Step {
        let allowance = self.effects.allowance(self.queue.front());
        let at_once =
            self.effects.trickle.map_or(u32::MAX, |rate| rate.get().div_ceil(TRICKLE_WRITES_PER_SECOND));
        let at_once = usize::try_from(at_once).unwrap_or(usize::MAX);
        if at_once < allowance.bytes {
            return Step::Write { bytes: at_once, reset: None };
        }
        Step::Write { bytes: allowance.bytes, reset: allowance.reset }
    }

    fn wrote(&mut self, count: usize) {
        self.effects.forwarded(&self.queue.front()[..count]);
        self.queue.remove(count);
        if let Some(rate) = self.effects.trickle {
            // A trickle writes at most a fraction of its rate, which is a u32.
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let pause = Duration::from_secs(1) * count / rate.get();
            self.next_trickle = self.next_trickle.max(Instant::now()) + pause;
        }
        self.route.counters.forwarded(self.toward, count);
    }

    /// Takes the result of a read. No count means that the read has failed.
    fn was_read(&mut self, count: Option<usize>, buffer: &[u8]) {
        let is_reset = match count {
            Some(0) => self.failed.source_has_failed(self.toward),
            Some(count) => return self.queue.push(&buffer[..count]),
            None => true,
        };
        self.source_end = Some(SourceEnd { arrived: Instant::now(), is_reset });
    }

    /// Returns the reset as an error, unless other connections have used up the resets of the fault.
    fn reset(&mut self, fault: &Arc<ActiveFault>) -> Result<(), Reset> {
        if self.route.faults.claim_reset(fault) {
            return Err(Reset::Fault(self.toward));
        }
        self.effects.forget(fault);
        Ok(())
    }
}
