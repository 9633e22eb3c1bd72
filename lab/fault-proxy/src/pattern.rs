use std::sync::Arc;

/// Finds a pattern in a stream, also where it begins in one chunk and ends in another (Knuth-Morris-Pratt).
#[derive(Debug, Clone)]
pub(crate) struct Matcher {
    table: Arc<Table>,
    /// How many bytes of the pattern the stream ends with now.
    matched: usize,
}

#[derive(Debug)]
struct Table {
    pattern: Vec<u8>,
    /// For each length of a match, the length of the longest shorter match that is still possible.
    shorter: Vec<usize>,
}

impl Matcher {
    /// `pattern` has at least one byte.
    pub(crate) fn new(pattern: &[u8]) -> Self {
        let mut shorter = vec![0; pattern.len() + 1];
        let mut matched = 0;
        for (index, byte) in pattern.iter().enumerate().skip(1) {
            while matched > 0 && pattern[matched] != *byte {
                matched = shorter[matched];
            }
            if pattern[matched] == *byte {
                matched += 1;
            }
            shorter[index + 1] = matched;
        }
        Self { table: Arc::new(Table { pattern: pattern.to_vec(), shorter }), matched: 0 }
    }

    pub(crate) fn pattern_length(&self) -> usize {
        self.table.pattern.len()
    }

    /// The index behind the first match that ends in `bytes`. Does not move on in the stream.
    pub(crate) fn find_end(&self, bytes: &[u8]) -> Option<usize> {
        let mut matched = self.matched;
        for (index, byte) in bytes.iter().enumerate() {
            matched = self.next(matched, *byte);
            if matched == self.pattern_length() {
                return Some(index + 1);
            }
        }
        None
    }

    /// Moves on in the stream by `bytes`.
    pub(crate) fn advance(&mut self, bytes: &[u8]) {
        self.matched = bytes.iter().fold(self.matched, |matched, byte| self.next(matched, *byte));
    }

    fn next(&self, mut matched: usize, byte: u8) -> usize {
        let Table { pattern, shorter } = &*self.table;
        while matched > 0 && pattern.get(matched) != Some(&byte) {
            matched = shorter[matched];
        }
        if pattern[matched] == byte { matched + 1 } else { matched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of the first match when the stream arrives in chunks of this size.
    fn end_in_chunks(pattern: &[u8], stream: &[u8], size: usize) -> Option<usize> {
        let mut matcher = Matcher::new(pattern);
        let mut seen = 0;
        for chunk in stream.chunks(size) {
            if let Some(end) = matcher.find_end(chunk) {
                return Some(seen + end);
            }
            matcher.advance(chunk);
            seen += chunk.len();
        }
        None
    }

    #[test]
    fn a_match_is_found_in_chunks_of_every_size() {
        let streams: [&[u8]; 6] =
            [b"COMMIT", b"xCOMMITx", b"COMCOMMIT", b"COMMICOMMIT", b"CCOMMIT COMMIT", b"nothing"];
        for stream in streams {
            let expected = stream.windows(6).position(|window| window == b"COMMIT").map(|start| start + 6);
            for size in 1..=stream.len() {
                assert_eq!(end_in_chunks(b"COMMIT", stream, size), expected, "{stream:?} by {size}");
            }
        }
    }

    #[test]
    fn every_short_pattern_is_found_where_a_naive_search_finds_it() {
        let words = |length: usize| {
            (0..1_u32 << length)
                .map(move |bits| (0..length).map(|index| b'a' + u8::from(bits >> index & 1 == 1)).collect())
        };
        for pattern in (1..=4).flat_map(words) {
            for stream in words(9) {
                let (pattern, stream): (&Vec<u8>, Vec<u8>) = (&pattern, stream);
                let naive = stream.windows(pattern.len()).position(|window| window == pattern);
                let expected = naive.map(|start| start + pattern.len());
                for size in [1, 2, 3, 9] {
                    assert_eq!(end_in_chunks(pattern, &stream, size), expected, "{pattern:?} in {stream:?}");
                }
            }
        }
    }
}
