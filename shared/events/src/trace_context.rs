use std::fmt;

/// W3C Trace Context (`traceparent`): ties the HTTP request, the outbox row, the message and the effects together.
///
/// <https://www.w3.org/TR/trace-context/#traceparent-header>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

impl TraceContext {
    /// A new trace, for a request that brought none.
    pub fn root() -> Self {
        Self { trace_id: fastrand::u128(1..), parent_id: fastrand::u64(1..), flags: 1 }
    }

    /// The same trace with a new span, whose parent is this one.
    pub fn child(&self) -> Self {
        Self { parent_id: fastrand::u64(1..), ..*self }
    }

    /// Parses a `traceparent`. `None` for everything that the standard calls invalid: a bad header must not fail the
    /// request that carries it, so the caller starts a new trace.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace_id, parent_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex(version, 2)?;
        // A later version may have more than these four parts; version 00 may not, and ff is forbidden.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace_id = hex(trace_id, 32).filter(|id| *id != 0)?;
        let parent_id = hex(parent_id, 16).filter(|id| *id != 0)?;
        let flags = hex(flags, 2)?;
        Some(Self { trace_id, parent_id: u64::try_from(parent_id).ok()?, flags: u8::try_from(flags).ok()? })
    }

    /// The trace's id as 32 hexadecimal digits, as in the logs.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

/// Parses exactly `digits` lower-case hexadecimal digits: the standard allows no others.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let valid = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_header_survives_a_round_trip() {
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(TraceContext::parse(header).unwrap().to_string(), header);
    }

    #[test]
    fn child_keeps_the_trace_and_gets_a_new_span() {
        let parent = TraceContext::root();
        let child = parent.child();
        assert_eq!(parent.trace_id(), child.trace_id());
        assert_ne!(parent.parent_id, child.parent_id);
    }

    #[test]
    fn invalid_headers_are_not_parsed() {
        for header in [
            "",
            "00",
            "hello",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(header), None, "{header:?}");
        }
    }
}
