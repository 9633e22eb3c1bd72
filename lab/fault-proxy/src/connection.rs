//! One connection: forwards both directions as the fault permits, and resets.

use std::{collections::VecDeque, future::pending, io, sync::Arc, time::Duration};

use memchr::memmem;
use tokio::{
    io::{AsyncWriteExt as _, copy, sink},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use crate::{Direction, Effect, RouteState, fault::Active, resolve};

/// How long a connection to the upstream may take, with the resolution of its name.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// How long the receiver of the last bytes may take to end its side.
const LINGER: Duration = Duration::from_secs(5);

const READ_BYTES: usize = 16 * 1024;

/// How many bytes of one direction may wait: more under a delay, whose rate this limits. Otherwise a sender would not notice a
/// slow receiver.
const MAX_WAITING: usize = 64 * 1024;
const MAX_DELAYED: usize = 512 * 1024;

/// How many writes a trickle makes of the bytes of one second.
const TRICKLE_WRITES: u32 = 20;

/// Why a connection ends before both its streams have ended.
enum Reset {
    /// The fault's condition was met by bytes in this direction.
    Fault(Direction),
    Cut,
    /// A peer has reset its side, or the upstream cannot be reached.
    Peer,
}

/// Carries one connection until it ends.
pub(crate) async fn carry(mut client: TcpStream, mut silenced: watch::Receiver<()>, route: Arc<RouteState>) {
    let mut upstream = None;
    let ended = tokio::select! {
        biased;
        _ = until(&route, |effect| effect == Some(&Effect::Cut), Direction::Both) => Err(Reset::Cut),
        ended = async {
            tokio::select! {
                biased;
                _ = silenced.changed() => pending().await,
                ended = forward(&mut client, &mut upstream, &route) => ended,
            }
        } => ended,
    };
    let Err(why) = ended else { return };
    if !matches!(why, Reset::Peer) {
        route.stats.send_modify(|stats| stats.resets += 1);
    }
    let receiver = match why {
        Reset::Fault(Direction::TowardClient) => {
            upstream.into_iter().for_each(reset);
            Some(client)
        }
        Reset::Fault(_) => {
            reset(client);
            upstream
        }
        Reset::Cut | Reset::Peer => {
            [Some(client), upstream].into_iter().flatten().for_each(reset);
            None
        }
    };
    // A reset would discard the last bytes, which the receiver may not have read. So its stream ends, and what it still
    // answers goes nowhere.
    if let Some(mut receiver) = receiver {
        let ending = async {
            receiver.shutdown().await?;
            copy(&mut receiver, &mut sink()).await
        };
        let _ = timeout(LINGER, ending).await;
    }
}

/// Closes a connection with a reset: the peer sees ECONNRESET, not an end of file.
pub(crate) fn reset(stream: TcpStream) {
    // Fails only for a socket that the peer has reset already.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Waits until the effect on a direction meets a condition.
async fn until(route: &RouteState, condition: impl Fn(Option<&Effect>) -> bool, toward: Direction) {
    let mut faults = route.fault.subscribe();
    loop {
        let active = faults.borrow_and_update().clone();
        if condition(active.as_ref().and_then(|active| active.effect(toward))) {
            return;
        }
        changed_or_ended(&mut faults, active.as_deref()).await;
    }
}

/// Waits until another fault is set, or this one ends.
async fn changed_or_ended(faults: &mut watch::Receiver<Option<Arc<Active>>>, active: Option<&Active>) {
    let ends_at = active.filter(|active| active.is_in_force()).map(|active| active.ends_at);
    tokio::select! {
        // The sender lives as long as the route.
        _ = faults.changed() => {}
        () = sleep_until(ends_at.unwrap_or_else(Instant::now)), if ends_at.is_some() => {}
    }
}

/// Connects to the upstream and forwards both directions.
async fn forward(
    client: &mut TcpStream,
    upstream: &mut Option<TcpStream>,
    route: &RouteState,
) -> Result<(), Reset> {
    // A dead link carries no connection request either.
    let alive = |effect: Option<&Effect>| effect != Some(&Effect::BlackHole);
    until(route, alive, Direction::TowardUpstream).await;
    let connected = timeout(CONNECT_DEADLINE, connect(&route.upstream)).await;
    let upstream = match connected.map_err(io::Error::from).flatten() {
        Ok(connected) => upstream.insert(connected),
        Err(cause) => {
            tracing::warn!(route = route.route.name, "failed to connect to the upstream: {cause}");
            // Nor the refusal of the upstream.
            until(route, alive, Direction::TowardClient).await;
            return Err(Reset::Peer);
        }
    };
    for stream in [&*client, &*upstream] {
        // Nagle's algorithm would add a delay. This fails only for a socket that is reset already.
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.split();
    let (from_upstream, to_upstream) = upstream.split();
    // One task polls both, and the first reset drops both: nothing is forwarded between a reset and its execution.
    tokio::try_join!(
        Pump::new(Direction::TowardUpstream, from_client, to_upstream, route).run(),
        Pump::new(Direction::TowardClient, from_upstream, to_client, route).run(),
    )?;
    Ok(())
}

async fn connect(upstream: &watch::Sender<String>) -> io::Result<TcpStream> {
    let upstream = upstream.borrow().clone();
    let addresses = resolve(&upstream).await.map_err(io::Error::other)?;
    TcpStream::connect(&*addresses).await
}

/// Forwards one direction of a connection.
struct Pump<'a> {
    toward: Direction,
    source: ReadHalf<'a>,
    sink: WriteHalf<'a>,
    faults: watch::Receiver<Option<Arc<Active>>>,
    /// What was read and not yet forwarded, with the time of its arrival.
    queue: VecDeque<(Instant, Vec<u8>)>,
    waiting: usize,
    /// When the source ended. Its end is forwarded after all bytes.
    ended: Option<Instant>,
    progress: Option<Progress>,
    /// When a trickle writes next.
    next_write: Instant,
}

/// How far a direction is from a reset.
struct Progress {
    fault: Arc<Active>,
    forwarded: u64,
    /// The last bytes that were forwarded: the beginning of a pattern may be among them.
    tail: Vec<u8>,
    /// The pattern was seen: so many bytes of the oldest chunk go before the reset.
    left: Option<usize>,
}

impl<'a> Pump<'a> {
    fn new(toward: Direction, source: ReadHalf<'a>, sink: WriteHalf<'a>, route: &RouteState) -> Self {
        let (faults, queue) = (route.fault.subscribe(), VecDeque::new());
        let next_write = Instant::now();
        Self { toward, source, sink, faults, queue, waiting: 0, ended: None, progress: None, next_write }
    }

    /// Runs until the source has ended and all its bytes are forwarded, or until the connection is to be reset. The caller must
    /// drop the pump of the other direction then, without polling it: it could forward the answer to the last bytes.
    async fn run(mut self) -> Result<(), Reset> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let active = self.faults.borrow_and_update().clone();
            let effect = active.as_ref().and_then(|active| active.effect(self.toward));
            let is_black_hole = effect == Some(&Effect::BlackHole);
            let (delay, max_waiting) = match effect {
                Some(Effect::Delay(delay)) => (*delay, MAX_DELAYED),
                _ => (Duration::ZERO, MAX_WAITING),
            };
            let arrived = self.queue.front().map(|(arrived, _)| *arrived);
            let due = arrived.or(self.ended).map(|arrived| (arrived + delay).max(self.next_write));
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if is_due && arrived.is_none() && !is_black_hole {
                return self.sink.shutdown().await.map_err(|_| Reset::Peer);
            }
            let may_read = !is_black_hole && self.ended.is_none() && self.waiting < max_waiting;
            // New faults come first: steady traffic must not keep one waiting.
            tokio::select! {
                biased;
                () = changed_or_ended(&mut self.faults, active.as_deref()) => {}
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && !is_due && !is_black_hole => {}
                ready = self.sink.writable(), if is_due && !is_black_hole => {
                    ready.map_err(|_| Reset::Peer)?;
                    self.write()?;
                }
                ready = self.source.readable(), if may_read => {
                    ready.map_err(|_| Reset::Peer)?;
                    self.read(&mut buffer)?;
                }
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), Reset> {
        match self.source.try_read(buffer) {
            Ok(0) => self.ended = Some(Instant::now()),
            Ok(count) => {
                self.waiting += count;
                self.queue.push_back((Instant::now(), buffer[..count].to_vec()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Reset::Peer),
        }
        Ok(())
    }

    /// Writes as much of the oldest chunk as the fault permits. `faults` stays locked meanwhile: no other fault is set between
    /// the decision and the write.
    fn write(&mut self) -> Result<(), Reset> {
        let active = self.faults.borrow();
        let effect = active.as_ref().and_then(|active| active.effect(self.toward));
        let Some((arrived, chunk)) = self.queue.front_mut() else { return Ok(()) };
        let (mut most, mut rate, mut reset) = (chunk.len(), None, false);
        match effect {
            Some(Effect::BlackHole | Effect::Cut) => return Ok(()),
            Some(Effect::Delay(delay)) if *arrived + *delay > Instant::now() => return Ok(()),
            Some(Effect::Trickle { bytes_per_second }) => {
                most = most.min(bytes_per_second.get().div_ceil(TRICKLE_WRITES) as usize);
                rate = Some(bytes_per_second.get());
            }
            Some(Effect::ResetAfter { .. } | Effect::ResetOnPattern { .. }) => {
                if let Some(active) = &*active
                    && let Some(left) = Progress::of(&mut self.progress, active).left(chunk)
                {
                    (most, reset) = (left, true);
                }
            }
            Some(Effect::Delay(_)) | None => {}
        }
        let written = if most == 0 {
            0
        } else {
            match self.sink.try_write(&chunk[..most]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Reset::Peer),
            }
        };
        if let Some(progress) = &mut self.progress {
            progress.note(&chunk[..written]);
        }
        if let Some(rate) = rate {
            let pause = Duration::from_secs(written as u64) / rate;
            self.next_write = self.next_write.max(Instant::now()) + pause;
        }
        self.waiting -= written;
        chunk.drain(..written);
        if chunk.is_empty() {
            self.queue.pop_front();
        }
        if reset && written == most {
            if active.as_ref().is_some_and(|active| active.claim_reset()) {
                return Err(Reset::Fault(self.toward));
            }
            self.progress = None;
        }
        Ok(())
    }
}

impl Progress {
    /// The progress of this fault. Another one begins from nothing.
    fn of<'a>(progress: &'a mut Option<Self>, fault: &Arc<Active>) -> &'a mut Self {
        progress.take_if(|known| !Arc::ptr_eq(&known.fault, fault));
        progress.get_or_insert_with(|| Self { fault: fault.clone(), forwarded: 0, tail: vec![], left: None })
    }

    /// How many bytes of the oldest chunk are forwarded before the reset. `None`: the reset is not within it.
    fn left(&mut self, chunk: &[u8]) -> Option<usize> {
        match &self.fault.fault.effect {
            Effect::ResetAfter { bytes } => {
                usize::try_from(bytes - self.forwarded).ok().filter(|left| *left <= chunk.len())
            }
            Effect::ResetOnPattern { pattern, forward } => {
                if self.left.is_none() {
                    let start = memmem::find(&[&self.tail, chunk].concat(), pattern)?;
                    // A beginning of the pattern may have been forwarded with an earlier chunk.
                    self.left =
                        Some(if *forward { chunk.len() } else { start.saturating_sub(self.tail.len()) });
                }
                self.left
            }
            _ => None,
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        self.forwarded += bytes.len() as u64;
        self.left = self.left.map(|left| left - bytes.len());
        if let Effect::ResetOnPattern { pattern, .. } = &self.fault.fault.effect {
            self.tail.extend_from_slice(bytes);
            self.tail.drain(..self.tail.len().saturating_sub(pattern.len() - 1));
        }
    }
}
