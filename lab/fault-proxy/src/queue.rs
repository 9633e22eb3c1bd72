use std::collections::VecDeque;

use tokio::time::Instant;

/// How many bytes of one direction may wait while a delay is in force.
///
/// The limit bounds memory and with it the rate under a delay: 512 KiB per delay on each connection.
const DELAYED_BYTES: usize = 512 * 1024;

/// How many bytes may wait otherwise. With more, a sender would not notice a slow receiver.
const UNDELAYED_BYTES: usize = 64 * 1024;

/// How many chunks may wait: a chunk of one byte costs far more than one byte.
const MAX_CHUNKS: usize = 4096;

/// The bytes that were read and not yet forwarded, in order, with the time of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

#[derive(Debug)]
struct Chunk {
    arrived: Instant,
    bytes: Vec<u8>,
    forwarded: usize,
}

impl Queue {
    pub(crate) fn has_room(&self, is_delayed: bool) -> bool {
        let limit = if is_delayed { DELAYED_BYTES } else { UNDELAYED_BYTES };
        self.bytes < limit && self.chunks.len() < MAX_CHUNKS
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.chunks.push_back(Chunk { arrived: Instant::now(), bytes: bytes.to_vec(), forwarded: 0 });
    }

    pub(crate) fn front_arrived(&self) -> Option<Instant> {
        self.chunks.front().map(|chunk| chunk.arrived)
    }

    /// What is left of the oldest chunk. Empty only when the queue is.
    pub(crate) fn front(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| &chunk.bytes[chunk.forwarded..])
    }

    /// Removes `count` bytes of the oldest chunk.
    pub(crate) fn remove(&mut self, count: usize) {
        self.bytes -= count;
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.forwarded += count;
            if chunk.forwarded == chunk.bytes.len() {
                self.chunks.pop_front();
            }
        }
    }
}
