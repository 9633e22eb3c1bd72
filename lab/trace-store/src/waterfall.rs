use crate::ReceivedSpan;

/// How many characters the time is drawn in.
const WIDTH: usize = 40;

/// Draws a trace: one line for each span, indented below the one that caused it, with a bar for its time.
pub fn waterfall(trace: &[ReceivedSpan]) -> Vec<String> {
    let start = trace.iter().map(|received| received.span.start_time_unix_nano).min().unwrap_or_default();
    let end = trace.iter().map(|received| received.span.end_time_unix_nano).max().unwrap_or_default();
    let total = (end - start).max(1);
    let column = |nanos: u64| {
        let column = u128::from(nanos - start) * WIDTH as u128 / u128::from(total);
        usize::try_from(column).unwrap_or(WIDTH).min(WIDTH - 1)
    };
    let mut rows = vec![];
    // A span whose parent was not received, for example the caller's own, is drawn as one that has none.
    let known = |id: &[u8]| trace.iter().any(|received| received.span.span_id == id);
    for root in trace.iter().filter(|received| !known(&received.span.parent_span_id)) {
        collect(root, 0, trace, &mut rows);
    }
    let longest = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or_default();
    let line = |(label, received): (String, &ReceivedSpan)| {
        let (from, to) = (received.span.start_time_unix_nano, received.span.end_time_unix_nano);
        let bar = format!("{}{}", " ".repeat(column(from)), "█".repeat(column(to) - column(from) + 1));
        let milliseconds = (to - from) as f64 / 1e6;
        let line = format!(
            "{label:longest$}  {:<9}  {milliseconds:>9.2} ms  {bar:WIDTH$}  {}",
            received.service,
            note(received)
        );
        line.trim_end().to_owned()
    };
    rows.into_iter().map(line).collect()
}

fn collect<'a>(
    received: &'a ReceivedSpan,
    depth: usize,
    trace: &'a [ReceivedSpan],
    rows: &mut Vec<(String, &'a ReceivedSpan)>,
) {
    let span = &received.span;
    // Ids come from other processes: a circle among them must not be followed endlessly.
    if rows.iter().any(|(_, drawn)| drawn.span.span_id == span.span_id) {
        return;
    }
    rows.push((format!("{}{}", "  ".repeat(depth), span.name), received));
    for child in trace.iter().filter(|child| child.span.parent_span_id == span.span_id) {
        collect(child, depth + 1, trace, rows);
    }
}

fn note(received: &ReceivedSpan) -> String {
    match received.error() {
        Some(error) => format!("failed: {error}"),
        None if received.attribute("shop.duplicate") == "true" => "duplicate".to_owned(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::trace::v1::Span;

    use super::*;

    fn span(id: &str, parent: &str, name: &str, from: u64, to: u64) -> ReceivedSpan {
        let span = Span {
            span_id: id.into(),
            parent_span_id: parent.into(),
            name: name.into(),
            start_time_unix_nano: from,
            end_time_unix_nano: to,
            ..Span::default()
        };
        ReceivedSpan { service: "orders".into(), span }
    }

    #[test]
    fn spans_are_drawn_below_what_caused_them_and_at_their_time() {
        let trace = [
            span("a", "caller", "POST /orders", 0, 20_000_000),
            span("b", "a", "outbox", 20_000_000, 30_000_000),
            span("c", "b", "process", 30_000_000, 40_000_000),
        ];
        let lines = waterfall(&trace);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("POST /orders  orders"), "{lines:?}");
        assert!(lines[1].starts_with("  outbox "), "{lines:?}");
        assert!(lines[2].starts_with("    process "), "{lines:?}");
        let bars: Vec<_> = lines.iter().map(|line| line.matches('█').count()).collect();
        assert_eq!(bars, [21, 11, 10]);
        assert!(lines.iter().all(|line| line.contains(" ms  ")), "{lines:?}");
    }

    #[test]
    fn a_circle_of_parents_is_not_followed() {
        let trace = [span("a", "b", "x", 0, 1), span("b", "a", "y", 0, 1), span("c", "", "z", 0, 1)];
        assert_eq!(waterfall(&trace).len(), 1);
    }
}
